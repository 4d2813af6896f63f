"""Rows of a checkpoint to Parquet."""

import sys
import tempfile

import numpy as np
import tensorflow as tf

from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.files.progress_line import ProgressLine


def export_parquet(table, path):
    """Writes one table's rows: columns key, count, version, values, and one per slot, which are
    lists of floats. Keys are uint64 where the table's are, int64 otherwise. With changes, the file
    has the rows as they are after them. A table without rows makes a file without rows.

    Args:
        table: of `files.tables`.
        path: of the file to write.

    Returns:
        How many rows.

    Raises:
        RuntimeError: a file of the table is damaged; nothing was written.
    """
    pyarrow, parquet = _pyarrow()
    if "://" in str(path):
        return _export_elsewhere(table, str(path))
    verified = [files.verify_file(file["path"], table["table"], file) for file in table["files"]]
    # A slot may be younger than the full save.
    slots = {slot["name"]: slot for header in verified for slot in header["slots"]}
    schema = _schema(pyarrow, verified, slots.values())
    total = sum(file["num_rows"] for file in verified)
    progress = ProgressLine(table["table"], total, sys.stderr.isatty(), unit="rows")
    num_rows = 0
    try:
        with parquet.ParquetWriter(str(path), schema) as writer:
            for header, block, kept in kept_rows(table):
                progress.add(len(kept))
                if kept.any():
                    writer.write_table(_table(pyarrow, block, kept, header, slots, schema))
                num_rows += int(kept.sum())
    finally:
        progress.end()
    return num_rows


def _export_elsewhere(table, path):
    """To a file system of TensorFlow's, of which pyarrow knows nothing."""
    with tempfile.TemporaryDirectory() as folder:
        num_rows = export_parquet(table, f"{folder}/rows.parquet")
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


def kept_rows(table):
    """(header, block, kept) of each block of a table's rows; kept: bool [rows], of which of them no
    change replaces or erases."""
    changed = changed_keys(table)
    for file in table["files"]:
        rows = files.table_file(file["path"])
        for block in rows:
            kept = np.ones(len(block["keys"]), bool)
            if not file["changes_only"]:
                kept = ~np.isin(block["keys"], changed)
            yield rows.header, block, kept


def _schema(pyarrow, headers, slots):
    # A full save of format version 2 does not say of which type its keys are; its changes may.
    unsigned = any(header["key_dtype"] == "uint64" for header in headers)
    integers = {"key": pyarrow.uint64() if unsigned else pyarrow.int64()}
    integers |= {"count": pyarrow.int64(), "version": pyarrow.int64()}
    widths = {"values": headers[0]["dim"], **{slot["name"]: slot["width"] for slot in slots}}
    lists = {name: pyarrow.list_(pyarrow.float32(), width) for name, width in widths.items()}
    return pyarrow.schema([*integers.items(), *lists.items()])


def _table(pyarrow, block, kept, header, slots, schema):
    columns = {
        "key": pyarrow.array(block["keys"][kept].view(str(schema.field("key").type))),
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
    return pyarrow.table(columns, schema=schema)


def _lists(pyarrow, matrix, dtype):
    """A list column of float32 rows, which represents every table's type exactly."""
    if dtype == "float16":
        matrix = matrix.view(np.float16).astype(np.float32)
    elif dtype == "bfloat16":
        matrix = (matrix.astype(np.uint32) << 16).view(np.float32)
    return pyarrow.FixedSizeListArray.from_arrays(
        pyarrow.array(matrix.reshape(-1)), matrix.shape[1]
    )
