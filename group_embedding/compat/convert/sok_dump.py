"""Folders that `sok.dump` of NVIDIA's SparseOperationKit 2 wrote.

A table NAME has two files, `NAME-key` and `NAME-weight`, where punctuation of the name is `_`. Each
begins with 296 bytes: 256 of the name, padded with blanks in front; a big-endian int32 that tells
keys, weights and slots apart; 32 of a slot's name; a big-endian int32 that numbers the dtype. An
array follows. Slots of optimizers, `NAME-Adagrad-accumulator`, are tables by their own names.
"""

from __future__ import annotations

import os

from group_embedding.compat.convert.array_files import matrix_file, size_of, vector_file
from group_embedding.compat.convert.rows import Part, SavedTable, table_of_parts

_HEAD_BYTES = 296
_DTYPES = ("int32", "int64", "uint32", "uint64", "float16", "float32", "float64")
_KEY, _WEIGHT, _SLOT = range(3)


def tables(path: str) -> list[SavedTable]:
    """The tables of a dump's folder, and those of slots under names of their own.

    Args:
        path: the folder.
    """
    found = []
    for file in sorted(os.listdir(path)):
        if not file.endswith("-key"):
            continue
        stem = os.path.join(path, file.removesuffix("-key"))
        name, keys_dtype = _head(f"{stem}-key", (_KEY,))
        keys = vector_file(f"{stem}-key", keys_dtype, _HEAD_BYTES)
        found.append(table_of_parts(name, [Part(keys, _rows(f"{stem}-weight", _WEIGHT, keys))]))
        for slot in sorted(os.listdir(path)):
            beside = os.path.join(path, slot)
            if beside.startswith(f"{stem}-") and beside not in (f"{stem}-key", f"{stem}-weight"):
                part = Part(keys, _rows(beside, _SLOT, keys))
                found.append(table_of_parts(f"{name}{beside.removeprefix(stem)}", [part]))
    return found


def _rows(path, kind, keys):
    _, dtype = _head(path, (kind,))
    return matrix_file(path, dtype, keys.num_rows, _HEAD_BYTES)


def _head(path, kinds):
    """The name of a file's table, and its dtype."""
    if size_of(path) < _HEAD_BYTES:
        raise ValueError(f"{path}: expected a head of {_HEAD_BYTES} bytes, got {size_of(path)}")
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    kind, dtype = int.from_bytes(head[256:260], "big"), int.from_bytes(head[292:296], "big")
    if kind not in kinds or dtype >= len(_DTYPES):
        raise ValueError(
            f"{path}: expected the head of a file of kind {kinds[0]} (0: keys, 1: weights, 2: a "
            f"slot) and a dtype below {len(_DTYPES)}, got kind {kind} and dtype {dtype}"
        )
    return head[:256].decode(errors="replace").strip(), _DTYPES[dtype]
