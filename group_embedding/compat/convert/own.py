"""EmbeddingVariables in checkpoints and SavedModels of this package, whose files
`checkpoint/README.md` describes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from group_embedding.checkpoint import changed_keys
from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.compat.convert.rows import Rows, SavedTable


def tables(path: str) -> list[SavedTable]:
    """The keyed tables of a checkpoint, of all ranks and with the changes that it has.

    Args:
        path: the prefix of a checkpoint, a folder, whose newest one is meant, or a SavedModel.
    """
    prefix = files.find(path)
    if prefix is None or not tf.io.gfile.exists(f"{prefix}.index"):
        raise ValueError(f"{path}: expected the prefix of a checkpoint, or a folder with one")
    return [_table(found) for found in files.tables(prefix)]


def _table(saved):
    parts = [files.verify_file(file["path"], saved["table"], file) for file in saved["files"]]
    header = parts[0]
    dtype = tf.as_dtype(header["dtype"]).as_numpy_dtype
    key_dtype = None if header["key_dtype"] == "unknown" else header["key_dtype"]
    replaced = changed_keys(saved)
    num_rows = sum(part["num_rows"] for part in parts)
    if len(replaced):
        num_rows = sum(len(rows.keys) for rows in _blocks(saved, np.dtype(dtype), replaced))
    return SavedTable(
        saved["table"],
        header["dim"],
        np.dtype(dtype),
        num_rows,
        lambda: _blocks(saved, np.dtype(dtype), replaced),
        key_dtype,
    )


def _blocks(saved, dtype, replaced) -> Iterator[Rows]:
    """All rows, but those of the full save that the changes replace."""
    for file in saved["files"]:
        for block in files.table_file(file["path"]):
            keys, values = block["keys"], block["values"]
            values = values if values.dtype == dtype else values.view(dtype)
            kept = np.ones(len(keys), bool)
            if not file["changes_only"]:
                kept = ~np.isin(keys, replaced)
            if kept.any():
                columns = (keys, values, block["counts"], block["versions"])
                yield Rows(*(column[kept] for column in columns))
