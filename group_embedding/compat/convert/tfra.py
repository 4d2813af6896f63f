"""Tables of TensorFlow Recommenders Addons (TFRA) 0.7 and 0.8.

A `dynamic_embedding.Variable` has one hash table per device, each a part with keys and values:

* in a checkpoint by name: `NAME_mht_1of2-keys` and `-values`;
* in a checkpoint by object: `PATH/tables_of_NAME/0/.ATTRIBUTES/table-keys` and `-values`;
* in a folder of `save_to_file_system`: files `NAME_mht_1of2_rank0_size1-keys` and `-values`, plain
  arrays without a header.
"""

from __future__ import annotations

import collections
import os
import re

from group_embedding.compat.convert.array_files import matrix_file, vector_file
from group_embedding.compat.convert.checkpoint_tensors import checkpoint_tensors
from group_embedding.compat.convert.rows import Part, SavedTable, table_of_parts

_BY_NAME = re.compile(r"(?:.*/)?(?P<name>[^/]+)_mht_\d+of\d+(?:_rank\d+_size\d+)?-keys$")
_BY_OBJECT = re.compile(r".*/tables_of_(?P<name>[^/]+)/\d+/\.ATTRIBUTES/table-keys$")


def tables(path: str, key_dtype: str = "int64", value_dtype: str = "float32") -> list[SavedTable]:
    """The tables of a checkpoint, or of a folder of `save_to_file_system`.

    Args:
        path: the prefix of a checkpoint, a folder of checkpoints, or a folder of such files.
        key_dtype, value_dtype: of the tables in a folder of files, which do not say.
    """
    if os.path.isdir(path):
        files = [os.path.join(path, name) for name in sorted(os.listdir(path))]
        if any(_BY_NAME.match(name) for name in files):
            return _tables(files, lambda keys: _files_part(keys, key_dtype, value_dtype))
    tensors = checkpoint_tensors(path)
    return _tables(sorted(tensors), lambda keys: _tensors_part(tensors, keys))


def _tables(names, part_of):
    parts = collections.defaultdict(list)
    for name in names:
        match = _BY_NAME.match(name) or _BY_OBJECT.match(name)
        if match is not None and (part := part_of(name)) is not None:
            parts[match["name"]].append(part)
    return [table_of_parts(name, of) for name, of in parts.items()]


def _files_part(keys_path, key_dtype, value_dtype):
    keys = vector_file(keys_path, key_dtype)
    values_path = keys_path.removesuffix("keys") + "values"
    if not keys.num_rows:  # a part without a row says nothing of its dim
        return None
    return Part(keys, matrix_file(values_path, value_dtype, keys.num_rows))


def _tensors_part(tensors, keys_name):
    values_name = keys_name.removesuffix("keys") + "values"
    if values_name not in tensors:
        raise ValueError(f"expected a tensor '{values_name}' beside '{keys_name}'")
    return Part(tensors[keys_name], tensors[values_name])
