"""Arrays that lie in files as plain bytes, read piece by piece."""

from __future__ import annotations

import dataclasses
import os

import numpy as np


@dataclasses.dataclass(frozen=True)
class ArrayFile:
    """An array in a file, row after row, little-endian.

    Attributes:
        path: of the file.
        dtype: of the array.
        width: items in a row; 0: the array has one axis.
        num_rows: how many rows.
        offset: of the first row, in bytes.
    """

    path: str
    dtype: np.dtype
    width: int
    num_rows: int
    offset: int = 0

    def read(self, begin: int, end: int) -> np.ndarray:
        """Rows `begin` to `end`, [end - begin, width] or [end - begin].

        Raises:
            ValueError: the file ends before them.
        """
        width = self.width or 1
        count = (end - begin) * width
        start = self.offset + begin * width * self.dtype.itemsize
        with open(self.path, "rb") as file:
            file.seek(start)
            data = file.read(count * self.dtype.itemsize)
        if len(data) < count * self.dtype.itemsize:
            raise ValueError(
                f"{self.path}: expected {count * self.dtype.itemsize:,} bytes from {start:,} on, "
                f"got {len(data):,}"
            )
        array = np.frombuffer(data, self.dtype)
        return array.reshape(end - begin, self.width) if self.width else array


def vector_file(path: str | os.PathLike[str], dtype: str, offset: int = 0) -> ArrayFile:
    """A file of numbers from `offset` to its end.

    Raises:
        ValueError: it is missing, or its size is no multiple of a number's.
    """
    dtype_ = np.dtype(dtype)
    size = size_of(path) - offset
    if size < 0 or size % dtype_.itemsize:
        raise ValueError(
            f"{path}: expected a multiple of {dtype_.itemsize} bytes of {dtype_.name}"
            + (f" behind {offset}" if offset else "")
            + f", got {size:,}"
        )
    return ArrayFile(os.fspath(path), dtype_, 0, size // dtype_.itemsize, offset)


def matrix_file(
    path: str | os.PathLike[str], dtype: str, num_rows: int, offset: int = 0
) -> ArrayFile:
    """A file of `num_rows` rows from `offset` to its end; its size says how long they are.

    Raises:
        ValueError: it is missing, or its size is no multiple of that many rows.
    """
    values = vector_file(path, dtype, offset)
    if not num_rows or not values.num_rows or values.num_rows % num_rows:
        raise ValueError(
            f"{path}: expected {num_rows:,} rows of one length, got {values.num_rows:,} numbers of "
            f"{values.dtype.name}"
        )
    return dataclasses.replace(values, width=values.num_rows // num_rows, num_rows=num_rows)


def size_of(path: str | os.PathLike[str]) -> int:
    """The size of a file in bytes; ValueError: there is none."""
    if not os.path.isfile(path):
        raise ValueError(
            f"{path}: expected a file, got {'a folder' if os.path.isdir(path) else 'none'}"
        )
    return os.path.getsize(path)
