"""Tables of other libraries as a checkpoint of keyed tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from group_embedding.checkpoint import manifest_name
from group_embedding.compat.convert.rows import SavedTable
from group_embedding.ops import core

Progress = Callable[[str, int, int], None]  # name of a table, rows done, rows in all
_NO_STEP = -1


def write_checkpoint(
    tables: Iterable[SavedTable],
    prefix: str | os.PathLike[str],
    progress: Progress = lambda name, done, total: None,
) -> list[str]:
    """Writes tables block by block to a checkpoint, from which keyed tables can start.

    A table starts from it with `EmbeddingVariableOption(ckpt=CheckpointOption(prefix, name))`:
    with values, counts and versions. Slots of an optimizer start anew.

    Args:
        tables: of `open_tables`, with different names.
        prefix: of the checkpoint, such as "moved/model", on this machine's file system. Folders are
            made.
        progress: called with a table's name, the rows that are written and all its rows.

    Returns:
        The names of the tables.

    Raises:
        ValueError: there is no table, two have one name, or a file is damaged.
        FileExistsError: a checkpoint of this prefix exists.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with open(f"{folder}/items.txt", "w") as file:
    ...     _ = file.write("7 0.5 1.5\\n42 2.5 3.5\\n")
    >>> tables = ge.convert.open_tables("text", f"{folder}/items.txt")
    >>> ge.convert.write_checkpoint(tables, f"{folder}/moved")
    ['items']
    >>> option = ge.EmbeddingVariableOption(ckpt=ge.CheckpointOption(f"{folder}/moved", "items"))
    >>> items = ge.get_embedding_variable("items", 2, ev_option=option)
    >>> items.sparse_read([42, 7]).numpy().tolist()
    [[2.5, 3.5], [0.5, 1.5]]
    """
    tables, prefix = list(tables), os.fspath(prefix)
    names = [table.name for table in tables]
    if not tables or len(set(names)) < len(names):
        raise ValueError(f"expected tables of different names, got {sorted(names)}")
    if "://" in prefix:
        raise ValueError(f"expected a prefix on this machine's file system, got '{prefix}'")
    if os.path.exists(f"{prefix}.index"):
        raise FileExistsError(f"'{prefix}': expected a new checkpoint, got one that exists")
    os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
    written: list[str] = []
    manifests = []
    try:
        for table in tables:
            suffix = core().new_suffix()
            written.append(f"{prefix}.{suffix}")
            found = _write_rows(table, written[-1], progress)
            manifests.append(core().encode_manifest(table.name, _NO_STEP, suffix, found))
    except BaseException:
        for path in filter(os.path.exists, written):
            os.remove(path)
        raise
    # The index, written last, makes the checkpoint valid.
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[manifest_name(name) for name in names],
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(manifest) for manifest in manifests],
    )
    return names


def _write_rows(table, path, progress):
    key_dtype = table.key_dtype or "unknown"
    file = core().TableFileWriter(
        path, table.name, table.dim, table.dtype.name, key_dtype, _NO_STEP
    )
    done = 0
    progress(table.name, done, table.num_rows)
    for rows in table.blocks():
        values = np.ascontiguousarray(rows.values)
        if values.dtype.itemsize == 2:
            values = values.view(np.uint16)
        none = np.zeros(len(rows.keys), np.int64)
        counts = none if rows.counts is None else rows.counts
        versions = none if rows.versions is None else rows.versions
        file.add_rows(rows.keys, values, counts, versions)
        done += len(rows.keys)
        progress(table.name, done, table.num_rows)
    return file.finish()
