"""A SavedModel written anew from files, without its trainer: with later deltas, or quantised."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.checkpoint import checkpoint_files
from group_embedding.ops import core
from group_embedding.serving.stores import records
from group_embedding.serving.stores.records import Record
from group_embedding.serving.versions import variables_file
from group_embedding.serving.versions.variables_file import VariableChange

v1 = tf.compat.v1

_OF_CHECKPOINT = "variables/variables"


def rewrite_model(
    source: str,
    folder: str,
    deltas: Mapping[str, Sequence[str]],
    changes: Sequence[VariableChange],
    quantize: str = "",
    tables: Collection[str] = (),
) -> None:
    """Writes a SavedModel whose rows are those of another one and of deltas after it.

    Args:
        source: The folder of a SavedModel.
        folder: An existing folder, which gets the new one.
        deltas: {name of a keyed table: paths of its files of changes, the earliest first}.
        changes: Changes of variables, the earliest first.
        quantize: "": rows as trained; or the format of rows: such a model serves alone.
        tables: Keys of variables that are tables by row number, which are quantised, too.
    """
    prefix = os.path.join(source, _OF_CHECKPOINT)
    new_prefix = os.path.join(folder, _OF_CHECKPOINT)
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=_without_rows(source))
    os.makedirs(os.path.dirname(new_prefix), exist_ok=True)
    manifests = checkpoint_files.manifests(prefix)
    written = {
        key: _rewrite_table(prefix, new_prefix, key, manifest, deltas, quantize)
        for key, manifest in manifests.items()
    }
    tensors, dtypes = _changed_tensors(prefix, written, changes)
    for key in tables if quantize else ():
        tensors[key], dtypes[key] = _encoded(key, tensors[key], dtypes[key], quantize)
    _write_tensors(new_prefix, tensors, dtypes)


def rewrite_base(
    target: Any,
    chain: Sequence[Record],
    own_rows: Mapping[str, Sequence[str]],
    own_changes: Sequence[VariableChange],
    folder: str,
    quantize: str = "",
    tables: Collection[str] = (),
) -> None:
    """Writes the base of a version from the versions before it and from its own changes.

    Args:
        target: A Target, which has the versions.
        chain: The records of a base and of all deltas after it.
        own_rows: {name of a table: paths of the version's own files}.
        own_changes: The version's own changes of variables.
        folder: An existing folder, which gets the base.
        quantize, tables: As of `rewrite_model`.
    """
    base, *rest = chain
    deltas: dict[str, list[str]] = {}
    changes: list[VariableChange] = []
    for record in rest:
        for file in record.files:
            path = target.path(record.version, file.path)
            if file.kind == records.ROWS:
                deltas.setdefault(file.table, []).append(path)
            elif file.kind == records.VARIABLES:
                found = variables_file.decode(path, file, functools.partial(target.open, path))
                changes += found.values()
    for table, paths in own_rows.items():
        deltas.setdefault(table, []).extend(paths)
    changes += own_changes
    rewrite_model(target.base_path(base.version), folder, deltas, changes, quantize, tables)


def _without_rows(source):
    """A filter for `copytree`: leaves out the checkpoint, and the version's record."""

    def ignore(path, names):
        of = os.path.relpath(path, source)
        if of == "variables":
            return list(names)
        return [name for name in names if (of, name) == ("assets.extra", "version")]

    return ignore


def _rewrite_table(prefix, new_prefix, key, manifest, deltas, quantize):
    """Writes the file of one table; returns its manifest."""
    table = core().decode_manifest(manifest, key)
    files = [{**file, "path": f"{prefix}.{file['suffix']}"} for file in table["files"]]
    name, suffix = table["table"], core().new_suffix()
    changes = list(deltas.get(name, ()))
    found = core().rewrite_table(name, files, changes, quantize, f"{new_prefix}.{suffix}")
    return core().encode_manifest(name, table["step"], suffix, found)


# The type of the tensor with the rows of a table by row number says in which format they are.
_STORED_AS = {"int8": tf.int8, "fp8": tf.uint8, "bfloat16": tf.bfloat16}


def _encoded(key, values, dtype, to):
    """The rows of a table by row number in a format of servers, and their type."""
    if not dtype.is_floating:
        raise ValueError(
            f"table '{key}': expected rows as trained, got rows quantised for serving; give the "
            "SavedModel that they were made from"
        )
    num_rows, dim = np.shape(values)
    rows = core().encode_rows(values.tobytes(), dtype.name, dim, to)
    stored = _STORED_AS[to]
    return rows.view(stored.as_numpy_dtype).reshape(num_rows, -1), stored


def _changed_tensors(prefix, manifests, changes):
    """TensorFlow's part of a checkpoint, changed: {name: value}, {name: dtype}."""
    reader = checkpoint_files.reader(prefix)
    dtypes = reader.get_variable_to_dtype_map()
    tensors = {
        name: manifests[name] if name in manifests else reader.get_tensor(name)
        for name in sorted(dtypes)
    }
    for change in changes:
        if change.key not in tensors:
            raise ValueError(f"variable '{change.key}': expected one of the base, got another one")
        if change.rows is None:
            tensors[change.key] = change.values
        else:
            tensors[change.key][change.rows] = change.values
    return tensors, dtypes


def _write_tensors(new_prefix, tensors, dtypes):
    # In a graph, as eager execution may be off; values are fed, as a graph has at most 2 GiB.
    with tf.Graph().as_default(), v1.Session() as session, tf.device("/CPU:0"):
        fed = [v1.placeholder(dtypes[name], np.shape(value)) for name, value in tensors.items()]
        save = tf.raw_ops.SaveV2(
            prefix=new_prefix,
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=fed,
        )
        session.run(save, dict(zip(fed, tensors.values())))
