"""Parquet: a unit is a row group, read in pieces."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from group_embedding.files import is_remote
from group_embedding.recommender.data import pieces
from group_embedding.recommender.data.arrow_columns import to_array, type_of
from group_embedding.recommender.data.columns import Column
from group_embedding.recommender.data.files import arrow, naming, open_for_arrow, remembered


class ParquetFormat(pieces.FileFormat):
    """Parquet files, as Spark, pandas and HugeCTR write them."""

    def complete(self, path: str, columns: Sequence[Column] | None) -> tuple[Column, ...]:
        with naming(path), open_for_arrow(path) as file:
            schema = arrow().parquet.read_schema(file)
        if columns is None:
            columns = [Column(name) for name in schema.names]
        return tuple(_complete(path, schema, column) for column in columns)

    def units(self, path: str) -> list[pieces.Unit]:
        metadata = _metadata(path)
        counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        return [pieces.Unit(path, i, i, i + 1, count) for i, count in enumerate(counts)]

    def read(
        self, unit: pieces.Unit, columns: tuple[Column, ...], strict: bool
    ) -> Iterator[pieces.Piece]:
        with naming(unit.path), open_for_arrow(unit.path) as file:
            # One request for chunks of columns that lie side by side, where requests take long.
            parquet = arrow().parquet.ParquetFile(
                file, metadata=_metadata(unit.path), pre_buffer=is_remote(unit.path)
            )
            _check_names(unit.path, parquet.schema_arrow, columns)
            names = list(dict.fromkeys(column.name for column in columns))
            begin = 0
            batches = parquet.iter_batches(
                pieces.PIECE_ROWS, [unit.index], names, use_threads=False
            )
            for batch in batches:
                yield batch_to_piece(unit, batch, columns, strict, _row_in_file(unit, begin))
                begin += batch.num_rows


def batch_to_piece(unit, batch, columns, strict, row_in_file):
    """The piece of a pyarrow.RecordBatch.

    Args:
        row_in_file: a function from the number of a row of the batch to that in the file, both from
            0, for errors.
    """
    arrays, all_bad, problem = {}, None, None
    for column in columns:
        values = batch.column(batch.schema.get_field_index(column.name))
        arrays[column.name], bad, got = to_array(values, column)
        if bad is None:
            continue
        row = row_in_file(int(bad.argmax())) + 1
        kind = f"a list of {column.dtype}" if column.is_list else column.dtype
        said = f"{unit.path}, row {row}, column '{column.name}': expected {kind}, got {got}"
        problem = problem or said
        if strict:
            raise pieces.BadRow(
                f"{said}; give its Column a value for missing ones, or the reader "
                "on_bad_rows='skip'"
            )
        all_bad = bad if all_bad is None else all_bad | bad
    piece = pieces.piece_of_good_rows(batch.num_rows, arrays, all_bad, problem)
    piece.missing = {c.name: batch.column(c.name).null_count for c in columns}
    return piece


@remembered
def _metadata(path):
    with naming(path), open_for_arrow(path) as file:
        return arrow().parquet.read_metadata(file)


def _row_in_file(unit, begin):
    def row_in_file(row):
        metadata = _metadata(unit.path)
        return sum(metadata.row_group(i).num_rows for i in range(unit.index)) + begin + row

    return row_in_file


def _check_names(path, schema, columns):
    for column in columns:
        if column.name not in schema.names:
            raise pieces.BadRow(
                f"{path}: expected a column '{column.name}', got {', '.join(schema.names)}"
            )
        _, depth = type_of(schema.field(column.name).type)
        if depth != column.is_list:
            raise pieces.BadRow(
                f"{path}: column '{column.name}': expected "
                f"{'lists' if column.is_list else 'one value a row'}, got "
                f"{schema.field(column.name).type}"
            )


def _complete(path, schema, column):
    if column.name not in schema.names:
        raise ValueError(
            f"{path}: expected a column '{column.name}', got {', '.join(schema.names) or 'none'}"
        )
    arrow_type = schema.field(column.name).type
    dtype, depth = type_of(arrow_type)
    if dtype is None or depth > 1:
        raise ValueError(
            f"{path}: column '{column.name}': expected numbers, text, or lists of them, got "
            f"{arrow_type}; name the other columns"
        )
    if column.is_list not in (None, bool(depth)):
        raise ValueError(
            f"{path}: column '{column.name}': expected "
            f"{'lists' if column.is_list else 'one value a row'}, as asked for, got {arrow_type}"
        )
    asked = "int64" if column.base == 16 else dtype
    return dataclasses.replace(column, dtype=column.dtype or asked, is_list=bool(depth))
