"""Rows of a checkpoint to Parquet."""

import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.files.progress_line import ProgressLine


def export_parquet(table, path):
    """Writes one table's rows: columns key, count, version, values, and one per slot, which are
    lists of floats. With changes, the file has the rows as they are after them.

    Args:
        table: of `files.tables`.
        path: of the file to write.

    Returns:
        How many rows.
    """
    pyarrow, parquet = _pyarrow()
    if "://" in str(path):
        return _export_elsewhere(table, str(path))
    changed = changed_keys(table)
    # A slot may be younger than the full save.
    slots = {
        slot["name"]: slot
        for file in table["files"]
        for slot in files.table_file(file["path"]).header["slots"]
    }
    verified = [files.verify_file(file["path"], table["table"], file) for file in table["files"]]
    total = sum(file["num_rows"] for file in verified)
    progress = ProgressLine(table["table"], total, sys.stderr.isatty(), unit="rows")
    num_rows, writer = 0, None
    try:
        for file in table["files"]:
            rows = files.table_file(file["path"])
            for block in rows:
                if not len(block["keys"]):
                    continue
                progress.add(len(block["keys"]))
                kept = np.ones(len(block["keys"]), bool)
                if not file["changes_only"]:
                    kept = ~np.isin(block["keys"], changed)
                columns = _columns(pyarrow, block, kept, rows.header, slots)
                writer = writer or parquet.ParquetWriter(str(path), columns.schema)
                writer.write_table(columns)
                num_rows += int(kept.sum())
    finally:
        if writer is not None:
            writer.close()
        progress.end()
    return num_rows


def _export_elsewhere(table, path):
    """To a file system of TensorFlow's, of which pyarrow knows nothing."""
    with tempfile.TemporaryDirectory() as folder:
        num_rows = export_parquet(table, f"{folder}/rows.parquet")
        if os.path.exists(f"{folder}/rows.parquet"):
            tf.io.gfile.copy(f"{folder}/rows.parquet", path, overwrite=True)
    return num_rows


def _pyarrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SystemExit(
            "group_embedding: pyarrow is missing, which writes Parquet: "
            "pip install 'group_embedding[parquet]', or pyarrow itself"
        ) from None
    return pyarrow, pyarrow.parquet


def changed_keys(table):
    """Keys of a full save that its changes replace or erase."""
    keys = [np.zeros(0, np.int64)]
    for file in table["files"]:
        if file["changes_only"]:
            for block in files.table_file(file["path"]):
                keys += [block["keys"], block["erased"]]
    return np.concatenate(keys)


def _columns(pyarrow, block, kept, header, slots):
    columns = {
        "key": pyarrow.array(block["keys"][kept]),
        "count": pyarrow.array(block["counts"][kept]),
        "version": pyarrow.array(block["versions"][kept]),
        "values": _lists(pyarrow, block["values"][kept], header["dtype"]),
    }
    arrays = {slot["name"]: array for slot, array in zip(header["slots"], block["slots"])}
    for name, slot in slots.items():
        if name in arrays:
            columns[name] = _lists(pyarrow, arrays[name][kept], slot["dtype"])
        else:
            nothing = np.full([int(kept.sum()), slot["width"]], slot["initial"], np.float32)
            columns[name] = _lists(pyarrow, nothing, "float32")
    return pyarrow.table(columns)


def _lists(pyarrow, matrix, dtype):
    """A list column of float32 rows, which represents every table's type exactly."""
    if dtype == "float16":
        matrix = matrix.view(np.float16).astype(np.float32)
    elif dtype == "bfloat16":
        matrix = (matrix.astype(np.uint32) << 16).view(np.float32)
    return pyarrow.FixedSizeListArray.from_arrays(
        pyarrow.array(matrix.reshape(-1)), matrix.shape[1]
    )
