"""A split of rows by time: earlier rows for training, later rows for evaluation."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from group_embedding.files import DataSourceParams
from group_embedding.recommender.data.columns import Ragged, complete_columns, take
from group_embedding.recommender.data.files import arrow, find_files
from group_embedding.recommender.data.formats import format_of
from group_embedding.recommender.data.key_counts import KeyCounts
from group_embedding.recommender.data.scan import scan

# Rows of a row group of the files that are written.
_ROW_GROUP = 262_144


def split_by_time(
    files: Any,
    time: str,
    before: str,
    after: str,
    at: float | None = None,
    fraction: float | None = None,
    columns: Any = None,
    format: Any = None,
    data_source: DataSourceParams | None = None,
) -> tuple[float, int, int]:
    """Writes the rows of files into two Parquet files: those before a moment, and the others.

    Rows keep their order. A missing value is a bad row, unless its `Column` has a value for it.

    Example:

    >>> with open("/tmp/ge_events.csv", "w") as file:
    ...     _ = file.write("time,item\\n" + "".join(f"{i},{i * i}\\n" for i in range(10)))
    >>> ge.data.split_by_time(
    ...     "/tmp/ge_events.csv", "time", "/tmp/ge_train.parquet", "/tmp/ge_test.parquet", at=8
    ... )
    (8, 8, 2)

    Args:
        files, columns, format, data_source: As `Reader` takes them.
        time: The name of the column with the time, a number.
        before, after: The files that are written, on this machine.
        at: The moment: rows whose time is below go into `before`.
        fraction: In place of `at`, the share of the rows that go into `before`, nearly: the moment
            is found in a pass of its own, of up to a million different times exactly.

    Returns:
        (the moment, the rows before it, the rows after it).

    Raises:
        ValueError: an argument is not of the form above, or a row is bad.
    """
    if (at is None) == (fraction is None) or (fraction is not None and not 0 < fraction < 1):
        raise ValueError(
            f"split_by_time: expected at, or a fraction between 0 and 1, got {at} and {fraction}"
        )
    paths = find_files(files, data_source)
    form = format_of(format, paths[0])
    complete = complete_columns(form, paths[0], columns, time)
    column = next((column for column in complete if column.name == time), None)
    if column is None:
        raise ValueError(
            f"{paths[0]}: expected a column '{time}', got {', '.join(c.name for c in complete)}"
        )
    if column.is_list or column.dtype in ("string", "bool"):
        raise ValueError(
            f"column '{time}': expected one number a row, got "
            f"{'a list of ' if column.is_list else ''}{column.dtype}"
        )
    if at is None:
        at = _moment_of(paths, column, form, fraction)
    return at, *_write_parts(paths, complete, form, time, at, (before, after))


def _moment_of(paths, column, form, fraction):
    """The least time such that at least this share of the rows is before it."""
    counts, is_float = KeyCounts(), column.dtype.startswith("float")
    for _, _, piece, _ in scan(paths, (column,), form):
        values = piece.arrays[column.name]
        if is_float:  # counted by their bits
            values = np.where(values == 0, 0.0, values).astype(np.float64).view(np.int64)
        counts.add(values)
    keys, times = counts.sampled()
    keys = keys.view(np.float64) if is_float else keys
    order = np.argsort(keys)
    keys, shares = keys[order], np.cumsum(times[order]) / max(times.sum(), 1)
    first = int(np.searchsorted(shares, fraction - 1e-12))
    if first + 1 >= len(keys):
        raise ValueError(
            f"split_by_time: expected times of which a share of {fraction} lies before others, got "
            f"{len(keys)} different times"
        )
    return keys[first + 1].item()


def _write_parts(paths, columns, form, time, at, outputs):
    pa, counts = arrow(), [0, 0]
    schema = pa.schema([(column.name, _arrow_type(column)) for column in columns])
    temporary = [f"{path}.writing" for path in outputs]
    writers = [pa.parquet.ParquetWriter(path, schema) for path in temporary]
    try:
        waiting = [[], []]
        for _, _, piece, _ in scan(paths, columns, form):
            early = piece.arrays[time] < at
            for part, chosen in enumerate((early, ~early)):
                rows = np.flatnonzero(chosen)
                if not len(rows):
                    continue
                counts[part] += len(rows)
                arrays = [_to_arrow(take(piece.arrays[c.name], rows), c) for c in columns]
                waiting[part].append(pa.Table.from_arrays(arrays, schema=schema))
                if sum(len(table) for table in waiting[part]) >= _ROW_GROUP:
                    writers[part].write_table(pa.concat_tables(waiting[part]))
                    waiting[part] = []
        for writer, tables in zip(writers, waiting):
            if tables:
                writer.write_table(pa.concat_tables(tables))
    finally:
        for writer in writers:
            writer.close()
    for path, output in zip(temporary, outputs):
        os.replace(path, output)
    return counts


def _arrow_type(column):
    pa = arrow()
    flat = pa.string() if column.dtype == "string" else pa.from_numpy_dtype(column.numpy_dtype)
    return pa.list_(flat) if column.is_list else flat


def _to_arrow(array, column):
    pa = arrow()
    if not isinstance(array, Ragged):
        binary = column.dtype == "string"
        return pa.array(array, pa.binary()).cast(pa.string()) if binary else pa.array(array)
    values = _to_arrow(array.values, dataclasses.replace(column, is_list=False))
    return pa.ListArray.from_arrays(pa.array(array.splits, pa.int32()), values)
