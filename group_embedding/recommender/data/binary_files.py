"""Binary layouts of Criteo's data: HugeCTR's Raw files, and TorchRec's arrays of NumPy.

Rows have a fixed number of bytes, so that a unit is a range of rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from group_embedding.recommender.data import pieces
from group_embedding.recommender.data.columns import Column, Ragged
from group_embedding.recommender.data.csv_files import CRITEO_CATEGORIES, CRITEO_DENSE
from group_embedding.recommender.data.files import exists, open_file, size_of

# Rows of a unit.
UNIT_ROWS = 262_144


class HugeCTRRawFormat(pieces.FileFormat):
    """HugeCTR's Raw files: per row the labels, the dense features, and as uint32 the categories,
    4 bytes each, without a header.

    Columns are float32 for labels and dense features, int64 for categories.

    Example:

    >>> form = ge.data.HugeCTRRawFormat(["click"], ["age"], {"user": 1, "items": 3})
    >>> [column.is_list for column in form.complete(None, None)]
    [False, False, False, True]

    Args:
        labels, dense: Names of these columns; by default Criteo's.
        categories: Names of the categorical columns, or a dict from names to how many ids a row
            has of each: columns of more than one are lists.
        float_label_dense: Whether labels and dense features are float32 in the files. Otherwise
            they are 32-bit integers, and a dense feature x becomes log(x + 1), as HugeCTR makes it.
    """

    def __init__(
        self,
        labels: Sequence[str] = ("label",),
        dense: Sequence[str] = CRITEO_DENSE,
        categories: Sequence[str] | Mapping[str, int] = CRITEO_CATEGORIES,
        float_label_dense: bool = False,
    ) -> None:
        if not isinstance(categories, Mapping):
            categories = dict.fromkeys(categories, 1)
        for name, hotness in categories.items():
            if hotness < 1:
                raise ValueError(f"column '{name}': expected 1 id or more a row, got {hotness}")
        self._labels, self._dense, self._hotness = tuple(labels), tuple(dense), dict(categories)
        self._float, self._width = bool(float_label_dense), 0
        self._starts = {}
        for name in [*labels, *dense, *categories]:
            if name in self._starts:
                raise ValueError(f"columns: expected each name once, got '{name}' twice")
            self._starts[name] = self._width
            self._width += self._hotness.get(name, 1)

    def complete(self, path: str, columns: Sequence[Column] | None) -> tuple[Column, ...]:
        names = self._starts if columns is None else [column.name for column in columns]
        columns = [Column(name) for name in names] if columns is None else columns
        return tuple(
            _complete(
                column, path, self._starts, "float32", "int64", self._hotness.get(column.name)
            )
            for column in columns
        )

    def units(self, path: str) -> list[pieces.Unit]:
        size, row = size_of(path), 4 * self._width
        if size % row:
            raise ValueError(
                f"{path}: expected rows of {row} bytes ({len(self._labels)} labels, "
                f"{len(self._dense)} dense features, {sum(self._hotness.values())} categories of 4 "
                f"bytes), got {size} bytes, which is no multiple"
            )
        return _units(path, size // row)

    def read(
        self, unit: pieces.Unit, columns: tuple[Column, ...], strict: bool
    ) -> Iterator[pieces.Piece]:
        for begin in range(unit.begin, unit.end, pieces.PIECE_ROWS):
            end = min(begin + pieces.PIECE_ROWS, unit.end)
            rows = _read_rows(unit.path, 0, np.dtype("<u4"), self._width, begin, end)
            arrays = {column.name: self._array_of(rows, column) for column in columns}
            yield pieces.Piece(end - begin, arrays)

    def _array_of(self, rows, column):
        name, start = column.name, self._starts[column.name]
        if name not in self._hotness:
            values = rows[:, start].view("<f4" if self._float else "<i4")
            if name in self._dense and not self._float:
                values = np.log1p(values.view("<u4").astype(np.float32))
            return values.astype(column.numpy_dtype)
        hotness = self._hotness[name]
        values = rows[:, start : start + hotness].astype(column.numpy_dtype)
        if not column.is_list:
            return values[:, 0]
        return Ragged(values.reshape(-1), np.arange(len(rows) + 1) * hotness)


class TorchRecFormat(pieces.FileFormat):
    """TorchRec's arrays: NAME_dense.npy (float32 [rows, 13]), NAME_sparse.npy (integers [rows, 26])
    and NAME_labels.npy (integers [rows, 1]) for each part of the data.

    A reader is given the folder, or the files that end in `_labels.npy`: the others are found
    beside them. Values are those of the arrays: TorchRec's own script has taken the logarithm of
    the dense ones. Columns are float32 for labels and dense features, int64 for categories.

    Example:

    >>> [column.name for column in ge.data.TorchRecFormat().complete(None, None)][:3]
    ['label', 'I1', 'I2']

    Args:
        labels, dense, categories: Names of the columns of the three arrays; by default Criteo's.
    """

    def __init__(
        self,
        labels: Sequence[str] = ("label",),
        dense: Sequence[str] = CRITEO_DENSE,
        categories: Sequence[str] = CRITEO_CATEGORIES,
    ) -> None:
        self._names = {"labels": tuple(labels), "dense": tuple(dense), "sparse": tuple(categories)}
        self._found = {
            name: (kind, i) for kind, names in self._names.items() for i, name in enumerate(names)
        }

    def complete(self, path: str, columns: Sequence[Column] | None) -> tuple[Column, ...]:
        columns = [Column(name) for name in self._found] if columns is None else columns
        categories = self._names["sparse"]
        return tuple(
            _complete(
                *(column, path, self._found, "float32", "int64"),
                1 if column.name in categories else None,
            )
            for column in columns
        )

    def units(self, path: str) -> list[pieces.Unit]:
        kind = next((kind for kind in self._names if path.endswith(f"_{kind}.npy")), None)
        if kind is None:
            raise ValueError(
                f"{path}: expected a name that ends in _dense.npy, _sparse.npy or _labels.npy"
            )
        if kind != "labels":
            return []
        headers = {kind: self._header(path, kind) for kind in self._names}
        counts = {kind: header.num_rows for kind, header in headers.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(f"{path}: expected three arrays of as many rows, got {counts}")
        return _units(path, counts["labels"])

    def read(
        self, unit: pieces.Unit, columns: tuple[Column, ...], strict: bool
    ) -> Iterator[pieces.Piece]:
        kinds = {self._found[column.name][0] for column in columns}
        headers = {kind: self._header(unit.path, kind) for kind in kinds}
        for begin in range(unit.begin, unit.end, pieces.PIECE_ROWS):
            end = min(begin + pieces.PIECE_ROWS, unit.end)
            rows = {kind: header.read(begin, end) for kind, header in headers.items()}
            arrays = {}
            for column in columns:
                kind, i = self._found[column.name]
                arrays[column.name] = rows[kind][:, i].astype(column.numpy_dtype)
            yield pieces.Piece(end - begin, arrays)

    def _header(self, path, kind):
        path = path[: -len("labels.npy")] + f"{kind}.npy"
        if not exists(path):
            raise ValueError(f"{path}: expected this file beside the labels, there is none")
        return _read_header(path, len(self._names[kind]))


@dataclasses.dataclass(frozen=True)
class _Array:
    """A file of NumPy with an array [num_rows, width]."""

    path: str
    offset: int
    dtype: np.dtype
    num_rows: int
    width: int

    def read(self, begin, end):
        return _read_rows(self.path, self.offset, self.dtype, self.width, begin, end)


def _read_header(path, width):
    with open_file(path) as file:
        try:
            version = np.lib.format.read_magic(file)
            read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
            shape, by_columns, dtype = read(file)
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path}: expected an array of NumPy, got: {error}") from None
        offset = file.tell()
    shape = (*shape, 1) if len(shape) == 1 else shape
    if len(shape) != 2 or shape[1] != width or by_columns or dtype.kind not in "iuf":
        raise ValueError(
            f"{path}: expected an array [rows, {width}] of numbers, row after row, got "
            f"{dtype} {list(shape)}{', column after column' if by_columns else ''}"
        )
    expected, size = offset + shape[0] * width * dtype.itemsize, size_of(path)
    if size < expected:
        raise ValueError(f"{path}: expected {expected} bytes, for {shape[0]} rows, got {size}")
    return _Array(path, offset, dtype, shape[0], width)


def _read_rows(path, offset, dtype, width, begin, end):
    """Rows of a file as an array [end - begin, width]."""
    row = width * dtype.itemsize
    with open_file(path) as file:
        file.seek(offset + begin * row)
        content = file.read((end - begin) * row)
    if len(content) != (end - begin) * row:
        raise ValueError(
            f"{path}: expected rows {begin + 1} to {end}, got {len(content) // row} of them; the "
            "file has changed"
        )
    return np.frombuffer(content, dtype).reshape(-1, width)


def _units(path, num_rows):
    begins = range(0, num_rows, UNIT_ROWS)
    ends = [min(begin + UNIT_ROWS, num_rows) for begin in begins]
    return [
        pieces.Unit(path, i, begin, end, end - begin)
        for i, (begin, end) in enumerate(zip(begins, ends))
    ]


def _complete(column, path, known, dense_dtype, category_dtype, hotness):
    """The column with the dtype of dense columns (hotness None) or of categories."""
    if column.name not in known:
        raise ValueError(
            f"{path}: expected a column '{column.name}', got {', '.join(known)}, as the format says"
        )
    is_list = hotness is not None and hotness > 1
    dtype = column.dtype or (dense_dtype if hotness is None else category_dtype)
    narrow = hotness is not None and dtype not in ("int64", "uint64", "uint32", "int32")
    if dtype in ("string", "bool") or column.base != 10 or narrow:
        raise ValueError(
            f"column '{column.name}': expected dtype "
            f"{'int32, int64, uint32 or uint64' if hotness else 'of numbers'}, for binary files, "
            f"got {dtype}"
        )
    if column.is_list not in (None, is_list):
        raise ValueError(
            f"column '{column.name}': expected is_list={is_list}, as the format has {hotness or 1} "
            f"values a row, got {column.is_list}"
        )
    return dataclasses.replace(column, dtype=dtype, is_list=is_list)
