"""The base of file formats: units, which are read on their own, and pieces of their rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from group_embedding.recommender.data import columns as rows_of
from group_embedding.recommender.data.columns import Column

# The rows of a piece, at most: what a thread decodes at a time.
PIECE_ROWS = 65_536


class BadRow(ValueError):
    """A row that cannot be read as its columns ask."""


@dataclasses.dataclass(frozen=True)
class Unit:
    """Rows of one file that are read without the rows before them: a row group, a range of bytes.

    Attributes:
      path: The file's path.
      index: The number of the unit in the file.
      begin, end: The range of the unit, in the format's own measure: bytes, rows or records.
      num_rows: How many rows it has; `None`: `FileFormat.count` reads the file to know.
    """

    path: str
    index: int
    begin: int
    end: int
    num_rows: int | None


@dataclasses.dataclass
class Piece:
    """Rows that follow each other in a unit.

    Attributes:
      num_rows: How many rows the file has here, bad ones included.
      arrays: By column name, an array or a Ragged of the good rows.
      kept: int64, for each good row its number among `num_rows`; `None`: all rows are good.
      problem: What is wrong with the first bad row; `None`: all rows are good.
      missing: By column name, how many values are missing; formats without missing values leave it
        empty.
    """

    num_rows: int
    arrays: dict[str, Any]
    kept: np.ndarray | None = None
    problem: str | None = None
    missing: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def num_bad(self):
        return 0 if self.kept is None else self.num_rows - len(self.kept)

    def cut(self, begin, end):
        """The piece of its rows `begin` to `end`, bad ones counted."""
        begin, end = max(begin, 0), min(end, self.num_rows)
        if begin == 0 and end == self.num_rows:
            return self
        first, last, kept = begin, end, None
        if self.kept is not None:
            first, last = np.searchsorted(self.kept, [begin, end])
            kept = self.kept[first:last] - begin
        arrays = {name: rows_of.cut(array, first, last) for name, array in self.arrays.items()}
        return Piece(end - begin, arrays, kept, self.problem)


def piece_of_good_rows(num_rows, arrays, bad, problem):
    """The piece of arrays that have all rows, without those that `bad` marks.

    Args:
        bad: bool [num_rows], or None where all rows are good.
    """
    if bad is None or not bad.any():
        return Piece(num_rows, arrays)
    kept = np.flatnonzero(~bad)
    arrays = {name: rows_of.take(array, kept) for name, array in arrays.items()}
    return Piece(num_rows, arrays, kept, problem)


class FileFormat:
    """How files of one format are read: a subclass for each format."""

    def complete(self, path: str, columns: Sequence[Column] | None) -> tuple[Column, ...]:
        """The columns with what the file says of them.

        Args:
            path: the first file.
            columns: a tuple of `Column`, or None for all columns of the file.
        """
        raise NotImplementedError

    def units(self, path: str) -> list[Unit]:
        """The units of a file, a list in the order of its rows."""
        raise NotImplementedError

    def count(self, unit: Unit) -> int:
        """How many rows a unit has whose `num_rows` is None."""
        raise NotImplementedError

    def read(self, unit: Unit, columns: tuple[Column, ...], strict: bool) -> Iterator[Piece]:
        """Generates the pieces of a unit, cut at the same rows each time.

        Args:
            columns: a tuple of complete columns.
            strict: raise BadRow at the first bad row, in place of leaving bad rows out.
        """
        raise NotImplementedError
