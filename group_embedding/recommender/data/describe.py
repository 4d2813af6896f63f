"""Descriptions of columns of files: counts, lengths, skew, and the schema that they suggest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from group_embedding.files import DataSourceParams
from group_embedding.recommender.data.columns import Column, Ragged, complete_columns
from group_embedding.recommender.data.files import find_files
from group_embedding.recommender.data.formats import format_of
from group_embedding.recommender.data.key_counts import KeyCounts
from group_embedding.recommender.data.scan import scan
from group_embedding.recommender.data.schema import Feature, Schema

_LABELS = ("label", "labels", "click", "clicked", "target", "y")


@dataclasses.dataclass
class ColumnDescription:
    """The description of one column of files.

    Attributes:
      column: The `Column`.
      num_values: The number of values, of all lists, without missing ones.
      missing: The number of missing values.
      distinct: The number of different values; None for floats.
      exact: True if `distinct` is exact, False if it is estimated from a sample of the values.
      top_share: The share of all occurrences that the most frequent 1% of the values have.
      least, most, mean, deviation: Numbers: their range, mean and standard deviation.
      lengths: Lists: least, mean and greatest length.
      feature: The `Feature` that is suggested.
    """

    column: Column
    num_values: int
    missing: int
    distinct: int | None
    exact: bool
    top_share: float | None
    least: float | None
    most: float | None
    mean: float | None
    deviation: float | None
    lengths: tuple[int, float, int] | None
    counts: np.ndarray | None
    feature: Feature | None = None


@dataclasses.dataclass
class Description:
    """A description of files: `columns`, a list of ColumnDescription, `num_rows` and `num_bad`."""

    columns: list[ColumnDescription]
    num_rows: int
    num_bad: int

    def schema(self) -> Schema:
        """The schema that is suggested."""
        return Schema([one.feature for one in self.columns if one.feature is not None])


def describe(
    files: Any,
    columns: Any = None,
    labels: Any = None,
    format: Any = None,
    progress: Callable[[int, float], None] | None = None,
    data_source: DataSourceParams | None = None,
) -> Description:
    """Reads all rows of files once, and describes their columns in bounded memory.

    Args:
        files, columns, format, data_source: As `Reader` takes them.
        labels: The names of labels; None: columns named label, click, clicked, target or y.
        progress: Called with the rows read and the share of the files, from 0 to 1.

    Returns:
        A `Description`.

    Example:

    >>> with open("/tmp/ge_described.csv", "w") as file:
    ...     _ = file.write("user,age,click\\n7,31,1\\n8,,0\\n7,54,1\\n")
    >>> described = ge.data.describe("/tmp/ge_described.csv")
    >>> [(c.column.name, c.distinct, c.missing) for c in described.columns]
    [('user', 2, 0), ('age', 2, 1), ('click', 2, 0)]
    """
    paths = find_files(files, data_source)
    file_format = format_of(format, paths[0])
    complete = complete_columns(file_format, paths[0], columns, None)
    read = tuple(dataclasses.replace(c, missing=_filler(c)) for c in complete)
    summaries = [_Summary(column) for column in read]
    num_rows = num_bad = 0
    for _, _, piece, share in scan(paths, read, file_format, strict=False):
        num_rows, num_bad = num_rows + piece.num_rows, num_bad + piece.num_bad
        for summary in summaries:
            summary.add(piece)
        if progress:
            progress(num_rows, share)
    labels = _LABELS if labels is None else [labels] if isinstance(labels, str) else labels
    described = [s.finish(column) for s, column in zip(summaries, complete)]
    for one in described:
        one.feature = suggest(one, one.column.name.lower() in labels or one.column.name in labels)
    return Description(described, num_rows, num_bad)


def suggest(described, is_label):
    """The feature that a column could be: floats are continuous, text and integers categorical."""
    column = described.column
    if is_label:
        return Feature(column.name, "label", column.dtype)
    if column.dtype.startswith("float") or column.dtype == "bool":
        missing = 0.0 if described.missing and column.missing is None else column.missing
        dtype = "float32" if column.dtype == "bool" else column.dtype
        return Feature(column.name, "continuous", dtype, column.is_list, missing)
    distinct = max(described.distinct, 1)
    dim = int(min(128, 8 * np.ceil(6 * distinct**0.25 / 8)))
    is_dense = column.dtype != "string" and described.least is not None and described.least >= 0
    is_dense = is_dense and described.most < 4 * distinct + 1000
    size = (
        {"num_ids": int(described.most) + 1} if is_dense else {"hash_size": _power_of_2(distinct)}
    )
    missing = column.missing
    if missing is None and described.missing and not column.is_list:
        missing = "" if column.dtype == "string" else 0 if column.dtype[0] == "u" else -1
    return Feature(
        *(column.name, "categorical", column.dtype, column.is_list, missing),
        **{"base": column.base, "separator": column.separator, "dim": dim, **size},
    )


def _power_of_2(distinct):
    return 1 << int(np.ceil(np.log2(2 * distinct)))


def _filler(column):
    if column.dtype.startswith("float"):
        return float("nan")
    return "" if column.dtype == "string" else 0


class _Summary:
    """Accumulates the description of one column while its rows are read."""

    def __init__(self, column):
        self._column, self._counts = column, KeyCounts()
        self._is_float = column.dtype.startswith("float")
        self._missing = self._num_values = self._num_rows = 0
        self._sums, self._range = np.zeros(2), [np.inf, -np.inf]
        self._lengths = [np.inf, -np.inf]

    def add(self, piece):
        array, missing = piece.arrays[self._column.name], piece.missing.get(self._column.name, 0)
        self._missing += missing
        if isinstance(array, Ragged):
            lengths = np.diff(array.splits)
            self._num_rows += len(lengths)
            if len(lengths):
                least, most = self._lengths
                self._lengths = [min(least, lengths.min()), max(most, lengths.max())]
            array = array.values
        if self._is_float:
            array = array[~np.isnan(array)]
        self._num_values += len(array)
        if array.dtype != object and len(array):
            self._add_numbers(array)
        if not self._is_float:
            self._counts.add(array)
            if missing and not self._column.is_list:
                filler = b"" if array.dtype == object else 0
                self._counts.remove(filler, missing)
                self._num_values -= missing

    def _add_numbers(self, array):
        least, most = self._range
        self._range = [min(least, array.min()), max(most, array.max())]
        exact = array.astype(np.float64)
        self._sums += [exact.sum(), np.square(exact).sum()]

    def finish(self, column):
        count, is_number = max(self._num_values, 1), np.isfinite(self._range[0])
        mean = self._sums[0] / count
        deviation = np.sqrt(max(self._sums[1] / count - mean**2, 0))
        lengths = None
        if column.is_list and self._num_rows:
            lengths = (int(self._lengths[0]), count / self._num_rows, int(self._lengths[1]))
        return ColumnDescription(
            *(column, self._num_values, self._missing),
            distinct=None if self._is_float else self._counts.num_distinct,
            exact=self._counts.exact,
            top_share=None if self._is_float else self._counts.share_of_top(),
            least=self._range[0] if is_number else None,
            most=self._range[1] if is_number else None,
            mean=float(mean) if is_number else None,
            deviation=float(deviation) if is_number else None,
            lengths=lengths,
            counts=None if self._is_float else np.sort(self._counts.sampled()[1])[::-1],
        )
