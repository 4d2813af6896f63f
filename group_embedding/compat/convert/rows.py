"""Trained rows of a table as blocks of arrays, whichever library wrote them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from group_embedding.compat.convert.array_files import ArrayFile

_BYTES_AT_A_TIME = 16 << 20
KEY_DTYPES = ("int64", "uint64", "int32", "uint32")
_VALUES = ("float32", "float16", "bfloat16", "float64")


@dataclasses.dataclass(frozen=True)
class Rows:
    """Some rows of a table.

    Attributes:
        keys: int64 [n]; unsigned keys bit for bit.
        values: [n, dim], float32, float16 or bfloat16.
        counts: int64 [n], how often each key was trained; None where the files do not say.
        versions: int64 [n], the step in which each key was trained last; None likewise.
    """

    keys: np.ndarray
    values: np.ndarray
    counts: np.ndarray | None = None
    versions: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class SavedTable:
    """A table in files.

    Attributes:
        name: of the table in these files.
        dim: values in a row.
        dtype: the NumPy dtype of `Rows.values`.
        num_rows: how many rows it has.
        key_dtype: the type of the keys in the files; None: not known, or row numbers.
    """

    name: str
    dim: int
    dtype: np.dtype
    num_rows: int
    _blocks: Callable[[], Iterator[Rows]] = dataclasses.field(repr=False)
    key_dtype: str | None = None

    def blocks(self) -> Iterator[Rows]:
        """All rows, block by block: no more than one block of 16 MB is in memory.

        Yields:
            `Rows`.

        Raises:
            ValueError: a file is damaged.
        """
        return self._blocks()


@dataclasses.dataclass(frozen=True)
class Part:
    """Arrays of the same number of rows: `keys` None means the row numbers."""

    keys: ArrayFile | None
    values: ArrayFile
    counts: ArrayFile | None = None
    versions: ArrayFile | None = None


def table_of_parts(name: str, parts: list[Part]) -> SavedTable:
    """A table whose rows lie in parts, one after the other.

    Args:
        name: of the table.
        parts: one or more `Part`, of one dim and dtype.

    Returns:
        A `SavedTable`.

    Raises:
        ValueError: arrays of a part differ in their number of rows, parts in dim or dtype, or a
            dtype is none of a table.
    """
    for part in parts:
        _check(name, part)
    kinds = {(part.values.width, part.values.dtype) for part in parts}
    if len(kinds) > 1:
        found = sorted(f"dim {dim} of {dtype}" for dim, dtype in kinds)
        raise ValueError(
            f"table '{name}': expected parts of one dim and dtype, got {' and '.join(found)}"
        )
    ((dim, dtype),) = kinds
    saved_dtype = np.dtype("float32") if dtype == np.float64 else dtype
    num_rows = sum(part.values.num_rows for part in parts)
    key_dtypes = {None if part.keys is None else part.keys.dtype.name for part in parts}
    key_dtype = key_dtypes.pop() if len(key_dtypes) == 1 else None
    return SavedTable(
        name, dim, saved_dtype, num_rows, lambda: _blocks_of(parts, saved_dtype), key_dtype
    )


def _check(name, part):
    if part.values.dtype.name not in _VALUES:
        raise ValueError(
            f"table '{name}': expected values of {', '.join(_VALUES)} in {part.values.path}, got "
            f"{part.values.dtype.name}"
        )
    if part.values.width < 1:
        raise ValueError(f"table '{name}': expected rows of dim 1 or more in {part.values.path}")
    if part.keys is not None and part.keys.dtype.name not in KEY_DTYPES:
        raise ValueError(
            f"table '{name}': expected keys of {', '.join(KEY_DTYPES)} in {part.keys.path}, got "
            f"{part.keys.dtype.name}"
        )
    for array in (part.keys, part.counts, part.versions):
        if array is not None and array.num_rows != part.values.num_rows:
            raise ValueError(
                f"table '{name}': expected {part.values.num_rows:,} rows in {array.path}, as many "
                f"as in {part.values.path}, got {array.num_rows:,}"
            )


def _blocks_of(parts, dtype):
    for part in parts:
        count = max(1, _BYTES_AT_A_TIME // (part.values.width * part.values.dtype.itemsize))
        for begin in range(0, part.values.num_rows, count):
            end = min(begin + count, part.values.num_rows)
            if part.keys is None:
                keys: Any = np.arange(begin, end, dtype=np.int64)
            else:
                keys = as_keys(part.keys.read(begin, end))
            numbers = [
                None if array is None else array.read(begin, end).astype(np.int64)
                for array in (part.counts, part.versions)
            ]
            yield Rows(keys, part.values.read(begin, end).astype(dtype, copy=False), *numbers)


def as_keys(array: np.ndarray) -> np.ndarray:
    """Integers as int64 keys; those of uint64 bit for bit."""
    return array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64)
