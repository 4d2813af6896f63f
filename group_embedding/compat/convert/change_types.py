"""Rows of a table with keys and values of other types, and of another dim."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from group_embedding.compat.convert.rows import KEY_DTYPES, Rows, SavedTable

VALUE_DTYPES = ("float32", "float16", "bfloat16")


def change_types(
    table: SavedTable,
    key_dtype: str | None = None,
    value_dtype: str | None = None,
    dim: int | None = None,
) -> SavedTable:
    """A table with the rows of another one, converted when they are read.

    Args:
        table: of `open_tables`.
        key_dtype: "int32", "int64", "uint32" or "uint64"; None: as it is.
        value_dtype: "float32", "float16" or "bfloat16", to which values are rounded; None: as it
            is.
        dim: a smaller one keeps the first columns, a larger one adds columns of zeros; None: as it
            is.

    Returns:
        A `SavedTable`. Its `blocks()` raise ValueError where a key is none of the new type, or a
        finite value is beyond it.

    Raises:
        ValueError: an unknown type, or a dim below 1.

    Example:

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/items.txt"
    >>> with open(path, "w") as file:
    ...     _ = file.write("7 0.5 1.5\\n")
    >>> (items,) = ge.convert.open_tables("text", path)
    >>> narrow = ge.convert.change_types(items, key_dtype="int32", value_dtype="bfloat16", dim=3)
    >>> [block.values.tolist() for block in narrow.blocks()]
    [[[0.5, 1.5, 0.0]]]
    """
    for what, word, known in (
        ("key_dtype", key_dtype, KEY_DTYPES),
        ("value_dtype", value_dtype, VALUE_DTYPES),
    ):
        if word is not None and word not in known:
            raise ValueError(f"{what}: expected one of {', '.join(known)}, got '{word}'")
    if dim is not None and dim < 1:
        raise ValueError(f"dim: expected 1 or more, got {dim}")
    new = dataclasses.replace(
        table,
        key_dtype=key_dtype or table.key_dtype,
        dtype=table.dtype
        if value_dtype is None
        else np.dtype(tf.as_dtype(value_dtype).as_numpy_dtype),
        dim=dim or table.dim,
    )
    return dataclasses.replace(new, _blocks=lambda: _converted(table, new))


def _converted(old: SavedTable, new: SavedTable) -> Iterator[Rows]:
    for rows in old.blocks():
        if new.key_dtype is not None:
            _check_keys(old, rows.keys, new.key_dtype)
        values = _rounded(new, rows)
        columns = min(old.dim, new.dim)
        resized = np.zeros([len(values), new.dim], new.dtype)
        resized[:, :columns] = values[:, :columns]
        yield dataclasses.replace(rows, values=resized)


def _check_keys(table, keys, key_dtype):
    saved = keys.view(np.uint64) if table.key_dtype == "uint64" else keys
    if table.key_dtype is None and key_dtype == "uint64":
        return  # 64 bits of an unknown type
    limits = np.iinfo(key_dtype)
    # In Python's integers, as NumPy compares int64 and uint64 as floats.
    for key in (saved.min(initial=limits.max), saved.max(initial=0)):
        if not limits.min <= int(key) <= limits.max:
            raise ValueError(f"table '{table.name}': expected keys of type {key_dtype}, got {key}")


def _rounded(table, rows):
    with np.errstate(over="ignore"):
        values = rows.values.astype(table.dtype)
    is_lost = np.isfinite(rows.values.astype(np.float32)) & ~np.isfinite(values.astype(np.float32))
    if is_lost.any():
        row, column = np.argwhere(is_lost)[0]
        raise ValueError(
            f"table '{table.name}': expected values within {table.dtype.name}, got "
            f"{rows.values[row, column]} of key {rows.keys[row]}"
        )
    return values
