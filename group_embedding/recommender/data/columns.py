"""`Column`: what a reader makes of one column of its files; and columns of rows as arrays."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "string"),
)


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of files of samples, and how its values are read.

    Example:

    >>> ge.data.Column("C1", "int64", base=16, missing=-1).dtype
    'int64'

    Attributes:
      name: The column's name in the files.
      dtype: The dtype of the tensor: "bool", "int8" to "int64", "uint8" to "uint64", "float16" to
        "float64" or "string"; `None`: as the files say.
      is_list: Whether a row has a list of values, which becomes a row of a RaggedTensor; `None`: as
        the files say.
      missing: The value that stands for a missing one. `None`: a row with a missing value is a bad
        row. A list that is missing is read as an empty one.
      base: 16 where text has hexadecimal numbers without a sign, as Criteo's categories.
      separator: In CSV files, the character between the values of a list.

    Raises:
      TypeError, ValueError: An attribute is not of the form above; the message names the column.
    """

    name: str
    dtype: str | None = None
    is_list: bool | None = None
    missing: Any = None
    base: int = 10
    separator: str | None = None

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"column: expected a name, a string, got {self.name!r}")
        owner = f"column '{self.name}'"
        if self.dtype is not None:
            dtype = "string" if self.dtype in (str, bytes) else self.dtype
            dtype = "string" if dtype == tf.string else getattr(dtype, "name", dtype)
            if dtype not in DTYPES:
                raise ValueError(f"{owner}: expected dtype one of {', '.join(DTYPES)}, got {dtype}")
            object.__setattr__(self, "dtype", dtype)
        if self.base not in (10, 16):
            raise ValueError(f"{owner}: expected base 10 or 16, got {self.base!r}")
        if self.base == 16 and self.dtype not in (None, "int64", "int32", "uint32", "uint64"):
            raise ValueError(f"{owner}: expected an integer dtype for base 16, got {self.dtype}")
        if self.separator is not None and (
            not isinstance(self.separator, str) or len(self.separator) != 1
        ):
            raise ValueError(
                f"{owner}: expected a separator of one character, got {self.separator!r}"
            )
        if self.missing is not None and self.dtype is not None:
            self._check_missing(owner)

    def _check_missing(self, owner):
        if self.dtype == "string":
            fits = isinstance(self.missing, (str, bytes))
        else:
            try:
                fits = np.isnan(self.missing) and self.dtype.startswith("float")
                fits = fits or self.numpy_dtype.type(self.missing) == self.missing
            except (TypeError, ValueError, OverflowError):
                fits = False
        if not fits and not (self.dtype.startswith("float") and _is_number(self.missing)):
            raise ValueError(
                f"{owner}: expected missing to be a value of {self.dtype}, got {self.missing!r}"
            )

    @property
    def numpy_dtype(self) -> np.dtype:
        """The dtype of the column's arrays; strings are Python's objects."""
        return np.dtype(object if self.dtype == "string" else self.dtype)

    @property
    def complete(self) -> bool:
        """True unless only the files can say what the column holds."""
        return self.dtype is not None and self.is_list is not None


def _is_number(value):
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def complete_columns(file_format, path, columns, labels):
    """The complete columns that a reader gives, by its arguments.

    Args:
        file_format: a `FileFormat`.
        path: of one of the files.
        columns: names and `Column`s; None: all that the file has.
        labels: the name of a column, or several; None: no labels.

    Returns:
        tuple of Columns of different names.
    """
    if columns is not None:
        columns = [Column(c) if isinstance(c, str) else c for c in columns]
        for column in columns:
            if not isinstance(column, Column):
                raise TypeError(f"columns: expected names or ge.data.Column, got {column!r}")
        names = [column.name for column in columns]
        wanted = [] if labels is None else [labels] if isinstance(labels, str) else labels
        columns += [Column(name) for name in wanted if name not in names]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"columns: expected each name once, got {', '.join(twice)} twice")
    complete = file_format.complete(path, None if columns is None else tuple(columns))
    if not complete:
        raise ValueError(f"columns: expected one or more, got none, of {path}")
    return complete


class Ragged(NamedTuple):
    """Rows of different lengths: row i has `values[splits[i]:splits[i + 1]]`."""

    values: np.ndarray
    splits: np.ndarray  # int64 [rows + 1], from 0


def num_rows(array):
    """How many rows an array or a Ragged has."""
    return len(array.splits) - 1 if isinstance(array, Ragged) else len(array)


def cut(array, begin, end):
    """Rows `begin` to `end`; arrays are views."""
    if not isinstance(array, Ragged):
        return array[begin:end]
    splits = array.splits[begin : end + 1]
    return Ragged(array.values[splits[0] : splits[-1]], splits - splits[0])


def take(array, rows):
    """The rows of these numbers."""
    if not isinstance(array, Ragged):
        return array[rows]
    lengths = np.diff(array.splits)[rows]
    splits = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    shift = np.repeat(array.splits[:-1][rows] - splits[:-1], lengths)
    return Ragged(array.values[shift + np.arange(splits[-1])], splits)


def join(arrays):
    """The rows of several arrays, one after the other."""
    if len(arrays) == 1:
        return arrays[0]
    if not isinstance(arrays[0], Ragged):
        return np.concatenate(arrays)
    lengths = np.concatenate([np.diff(array.splits) for array in arrays])
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return Ragged(np.concatenate([array.values for array in arrays]), splits)
