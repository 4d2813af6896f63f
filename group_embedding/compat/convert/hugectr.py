"""Sparse models of HugeCTR.

A sparse model is a folder with `key`, int64 or of older models uint32, `emb_vector`, float32 rows,
and for localized embeddings `slot_id`, uint64. Its name is the table's, such as
`0_sparse_1000.model`. HugeCTR's keys are global: with a slot's offset added, as `slot_size_array`
says. So the keys of all slots are one table, which features share.
"""

from __future__ import annotations

import os

from group_embedding.compat.convert.array_files import matrix_file, vector_file
from group_embedding.compat.convert.rows import Part, SavedTable, table_of_parts


def tables(path: str, key_dtype: str = "int64") -> list[SavedTable]:
    """The table of a sparse model, or those of all sparse models in a folder.

    Args:
        path: the folder of a model, or the folder with models.
        key_dtype: of the `key` files, "int64" or "uint32"; they do not say.
    """
    if key_dtype not in ("int64", "uint32"):
        raise ValueError(f"{path}: expected key_dtype int64 or uint32, got {key_dtype!r}")
    if os.path.exists(os.path.join(path, "key")):
        folders = [path]
    else:
        folders = sorted(
            entry.path for entry in os.scandir(path) if os.path.exists(f"{entry.path}/key")
        )
    return [_table(folder, key_dtype) for folder in folders]


def _table(folder, key_dtype):
    name = os.path.basename(os.path.normpath(folder))
    keys = vector_file(os.path.join(folder, "key"), key_dtype)
    values = matrix_file(os.path.join(folder, "emb_vector"), "float32", keys.num_rows)
    return table_of_parts(name, [Part(keys, values)])
