"""CSV and TSV: a unit is a range of bytes, which begins and ends where lines do."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
from collections.abc import Iterator, Sequence

import numpy as np

from group_embedding.recommender.data import pieces
from group_embedding.recommender.data.arrow_columns import type_of
from group_embedding.recommender.data.columns import Column
from group_embedding.recommender.data.files import arrow, naming, open_file, remembered, size_of
from group_embedding.recommender.data.parquet_files import batch_to_piece

# Bytes of a unit, about: some ten thousand rows.
UNIT_BYTES = 4 << 20


class CsvFormat(pieces.FileFormat):
    """Text with one row per line: CSV, TSV and the like, plain or as .gz.

    A value may be quoted, but it has no line break. Empty lines are no rows. Files as .gz cannot be
    read from the middle: each of them is one unit.

    Example:

    >>> ge.data.CsvFormat("\\t", names=["click", "user", "item"]).names
    ('click', 'user', 'item')

    Args:
        delimiter: The character between values.
        names: The columns' names; `None`: the first line of each file has them.
        columns: What `Reader(columns=None)` reads; `None`: all, of the types that the first lines
            of the first file have.
        quote: The character around values that have a delimiter; `None`: there are no quotes.
    """

    def __init__(
        self,
        delimiter: str = ",",
        names: Sequence[str] | None = None,
        columns: Sequence[Column] | None = None,
        quote: str | None = '"',
    ) -> None:
        self.delimiter, self.quote = delimiter, quote
        self.names = None if names is None else tuple(names)
        self._columns = columns

    def complete(self, path: str, columns: Sequence[Column] | None) -> tuple[Column, ...]:
        columns = self._columns if columns is None else columns
        names = self._names_of(path)
        if columns is None:
            columns = [Column(name) for name in names]
        types = None
        for column in columns:
            if column.name not in names:
                raise ValueError(
                    f"{path}: expected a column '{column.name}', got {', '.join(names) or 'none'}"
                )
            if column.dtype is None and column.base == 10 and types is None:
                types = self._guess_types(path, names)
        return tuple(_complete(column, types) for column in columns)

    def units(self, path: str) -> list[pieces.Unit]:
        begin = 0 if self.names else len(_first_line(path))
        if path.endswith(".gz"):
            return [pieces.Unit(path, 0, begin, -1, None)]
        size = size_of(path)
        starts = list(range(begin, size, UNIT_BYTES))
        ends = [*starts[1:], size]
        return [pieces.Unit(path, i, *pair, None) for i, pair in enumerate(zip(starts, ends))]

    def count(self, unit: pieces.Unit) -> int:
        with naming(unit.path):
            return sum(_count_rows(block) for block in _blocks(unit))

    def read(
        self, unit: pieces.Unit, columns: tuple[Column, ...], strict: bool
    ) -> Iterator[pieces.Piece]:
        names, begin = self._names_of(unit.path), 0
        for block in _blocks(unit):
            if _count_rows(block) == 0:
                continue
            with naming(unit.path):
                piece = self._parse(unit, begin, block, names, columns, strict)
            begin += piece.num_rows
            yield piece

    def _names_of(self, path):
        if self.names is not None:
            return self.names
        line = _first_line(path)
        if not line.strip():
            raise ValueError(f"{path}: expected a first line with the columns' names, got none")
        with naming(path):
            table = self._read_csv(line, None, None, None, None)
        return tuple(table.column_names)

    def _guess_types(self, path, names):
        """{column name: type of Arrow}, as the first lines look."""
        unit = next(iter(self.units(path)), None)
        block = next(_blocks(unit), b"") if unit else b""
        if _count_rows(block) == 0:
            raise ValueError(f"{path}: expected rows, to know the columns' dtypes, got none")
        with naming(path):
            table = self._read_csv(block, names, None, None, lambda row: "skip")
        return {field.name: field.type for field in table.schema}

    def _parse(self, unit, begin, block, names, columns, strict):
        """The piece of a block of whole lines."""
        num_rows, wrong = _count_rows(block), []

        def note(row):
            wrong.append(row)
            return "skip"

        wanted = list(dict.fromkeys(column.name for column in columns))
        types = {column.name: _type_to_read(column) for column in columns}
        try:
            table = self._read_csv(block, names, wanted, types, note)
        except arrow().ArrowInvalid:
            # A value that is no number: as text, the rows that have one are found.
            wrong.clear()
            types = {name: arrow().large_binary() for name in wanted}
            table = self._read_csv(block, names, wanted, types, note)
        problem = None
        if wrong:
            row = _rows_before(unit) + begin + wrong[0].number
            problem = (
                f"{unit.path}, row {row}: expected {len(names)} columns, got "
                f"{wrong[0].actual_columns}: {wrong[0].text[:200]!r}"
            )
            if strict:
                raise pieces.BadRow(f"{problem}; or give the reader on_bad_rows='skip'")
        batch = table.combine_chunks().to_batches(num_rows or 1)
        batch = batch[0] if batch else arrow().RecordBatch.from_pylist([], table.schema)
        good = np.delete(np.arange(num_rows), [row.number - 1 for row in wrong])
        piece = batch_to_piece(
            unit, batch, columns, strict, lambda row: _rows_before(unit) + begin + int(good[row])
        )
        if not wrong:
            return piece
        kept = good if piece.kept is None else good[piece.kept]
        return pieces.Piece(num_rows, piece.arrays, kept, piece.problem or problem, piece.missing)

    def _read_csv(self, block, names, wanted, types, on_wrong_row):
        csv = arrow().csv
        return csv.read_csv(
            arrow().BufferReader(block),
            csv.ReadOptions(
                use_threads=False, block_size=max(len(block) + 1, 1024), column_names=names
            ),
            csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char=self.quote or False,
                invalid_row_handler=on_wrong_row,
            ),
            csv.ConvertOptions(
                column_types=types,
                include_columns=wanted,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )


CRITEO_DENSE = tuple(f"I{i}" for i in range(1, 14))
CRITEO_CATEGORIES = tuple(f"C{i}" for i in range(1, 27))


def criteo_tsv(missing_dense: float = 0.0, missing_category: int = -1) -> CsvFormat:
    """The format of Criteo's files: lines of a label, 13 integers and 26 categories, by tabs.

    The columns are `label` (float32), `I1` to `I13` (float32) and `C1` to `C26` (int64: the
    hexadecimal number of the file).

    Example:

    >>> [column.name for column in ge.data.criteo_tsv().complete(None, None)][:3]
    ['label', 'I1', 'I2']

    Args:
        missing_dense: What stands for an integer that is missing.
        missing_category: What stands for a category that is missing; a lookup takes a negative id
            for no id.

    Returns:
        A `CsvFormat`.
    """
    columns = [
        Column("label", "float32", False),
        *(Column(name, "float32", False, missing_dense) for name in CRITEO_DENSE),
        *(Column(name, "int64", False, missing_category, base=16) for name in CRITEO_CATEGORIES),
    ]
    return CsvFormat("\t", [column.name for column in columns], columns, quote=None)


def _complete(column, types):
    is_list = column.separator is not None
    if column.is_list is not None and column.is_list != is_list:
        raise ValueError(
            f"column '{column.name}': expected a separator where is_list is True, and only there, "
            f"got is_list={column.is_list}, separator={column.separator!r}"
        )
    dtype = column.dtype
    if dtype is None:
        dtype = "int64" if column.base == 16 else type_of(types[column.name])[0] or "string"
        dtype = "string" if is_list and column.base == 10 else dtype
    return dataclasses.replace(column, dtype=dtype, is_list=is_list)


def _type_to_read(column):
    pa = arrow()
    if column.dtype == "string" or column.is_list or column.base == 16:
        return pa.large_string() if column.is_list else pa.large_binary()
    if column.dtype == "float16":
        return pa.float32()
    return pa.from_numpy_dtype(column.numpy_dtype)


@contextlib.contextmanager
def _open(path):
    """The text of a file, as a file of Python."""
    if not path.endswith(".gz"):
        with open_file(path) as file:
            yield file
        return
    with open_file(path, UNIT_BYTES) as file, gzip.GzipFile(fileobj=file, mode="rb") as text:
        yield text


@remembered
def _first_line(path):
    with _open(path) as file:
        return file.readline()


def _blocks(unit):
    """Generates the lines of a unit, some millions of bytes at a time."""
    with _open(unit.path) as file:
        if unit.end >= 0:
            block = _read_lines(file, unit.begin, unit.end)
            if block:
                yield block
            return
        file.seek(unit.begin)
        while True:
            block = file.read(UNIT_BYTES)
            if not block:
                return
            yield block if block.endswith(b"\n") else block + file.readline()


def _read_lines(file, begin, end):
    """The lines that begin in [begin, end)."""
    file.seek(max(begin - 1, 0))
    if begin:
        file.readline()  # of the unit before, or only its line break
    begin = file.tell()
    if begin >= end:
        return b""
    block = file.read(end - begin)
    return block if block.endswith(b"\n") else block + file.readline()


def _count_rows(block):
    """How many lines are not empty."""
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    if len(data) and data[-1] != ord("\n"):
        ends = np.append(ends, len(data))
    if not len(ends):
        return 0
    lengths = np.diff(ends, prepend=-1) - 1
    short = np.flatnonzero(lengths <= 1)
    empty = lengths[short] == 0
    empty |= data[ends[short] - 1] == ord("\r")
    return len(ends) - int(empty.sum())


def _rows_before(unit):
    """How many rows the file has before a unit."""
    if unit.end < 0:
        return 0
    first = unit.begin - unit.index * UNIT_BYTES
    with open_file(unit.path) as file:
        return sum(
            _count_rows(_read_lines(file, begin, begin + UNIT_BYTES))
            for begin in range(first, unit.begin, UNIT_BYTES)
        )
