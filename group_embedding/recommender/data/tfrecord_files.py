"""TFRecord files of `tf.train.Example`: a unit is a file, parsed by TensorFlow's own ops."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from group_embedding.files import is_remote, local_path
from group_embedding.recommender.data import columns as rows_of
from group_embedding.recommender.data import pieces
from group_embedding.recommender.data.columns import Column, Ragged
from group_embedding.recommender.data.files import local_copy, open_file

# Records that are parsed together.
PARSED_ROWS = 4_096
# Records that say which features there are.
_LOOKED_AT = 256
_LONGEST = 1 << 30  # bytes of a record that is no sign of damage
_KINDS = {"int64_list": "int64", "float_list": "float32", "bytes_list": "string"}


class TFRecordFormat(pieces.FileFormat):
    """TFRecord files whose records are `tf.train.Example`s; plain, or as .gz.

    A feature with one value in each of the first 256 records of the first file is a column of one
    value, others are columns of lists, unless `Column(is_list=...)` says so. A file cannot be read
    from the middle: it is one unit, so that there should be more files than threads and ranks.

    Example:

    >>> with tf.io.TFRecordWriter("/tmp/ge_samples.tfrecord") as writer:
    ...     for user in range(3):
    ...         ids = tf.train.Int64List(value=[user])
    ...         feature = {"user": tf.train.Feature(int64_list=ids)}
    ...         example = tf.train.Example(features=tf.train.Features(feature=feature))
    ...         writer.write(example.SerializeToString())
    >>> for batch in ge.data.Reader("/tmp/ge_samples.tfrecord", batch_size=2):
    ...     print(batch["user"].numpy())
    [0 1]
    [2]
    """

    def complete(self, path: str, columns: Sequence[Column] | None) -> tuple[Column, ...]:
        features = _features_of(path)
        if columns is None:
            columns = [Column(name) for name in sorted(features)]
        return tuple(_complete(path, features, column) for column in columns)

    def units(self, path: str) -> list[pieces.Unit]:
        return [pieces.Unit(path, 0, 0, -1, None)]

    def count(self, unit: pieces.Unit) -> int:
        with (
            local_copy(unit.path) as path,
            context.eager_mode(),
            tf.device("CPU"),
            _naming(unit.path),
        ):
            return sum(len(records) for records in _records(path))

    def read(
        self, unit: pieces.Unit, columns: tuple[Column, ...], strict: bool
    ) -> Iterator[pieces.Piece]:
        begin = 0
        with local_copy(unit.path) as path, _naming(unit.path):
            records = _Records(path)
            while True:
                serialized = records.next()
                if serialized is None:
                    return
                yield _to_piece(unit, begin, serialized, columns, strict)
                begin += len(serialized)


class _Records:
    """Iterates in eager mode, whatever the mode of the program."""

    def __init__(self, path):
        with context.eager_mode(), tf.device("CPU"):
            self._iterator = iter(_records(path))

    def next(self):
        """Some records, a string tensor; None at the end."""
        with context.eager_mode(), tf.device("CPU"):
            return next(self._iterator, None)


def _records(path):
    kind = "GZIP" if path.endswith(".gz") else ""
    return tf.data.TFRecordDataset(path, kind).batch(PARSED_ROWS)


class _naming:
    """Inside, an error of TensorFlow becomes one that names the file."""

    def __init__(self, path):
        self._path = path

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if isinstance(error, tf.errors.OpError):
            raise ValueError(
                f"{self._path}: expected a file of TFRecords, got: {error.message}"
            ) from error


@contextlib.contextmanager
def _first_records(path):
    """A path of this machine with a file's first records, or with all of them."""
    if not is_remote(path):
        yield local_path(path)
        return
    with tempfile.NamedTemporaryFile(prefix="group_embedding_") as copy:
        with open_file(path) as file:
            records = gzip.GzipFile(fileobj=file) if path.endswith(".gz") else file
            for _ in range(_LOOKED_AT):
                head = records.read(12)  # the length, uint64, and its checksum
                length = int.from_bytes(head[:8], "little")
                copy.write(head)
                if (
                    len(head) < 12 or length > _LONGEST
                ):  # the end, or damage, which TensorFlow names
                    break
                copy.write(records.read(length + 4))
        copy.flush()
        yield copy.name


def _features_of(path):
    """{name: (dtype, is_list)} of the first records."""
    with _first_records(path) as copy, _naming(path):
        serialized = _Records(copy).next()
    if serialized is None:
        raise ValueError(f"{path}: expected records, to know their features, got none")
    found = {}
    records = serialized[:_LOOKED_AT].numpy()
    for number, record in enumerate(records, 1):
        try:
            example = tf.train.Example.FromString(record)
        except Exception as error:
            raise ValueError(
                f"{path}, row {number}: expected a tf.train.Example, got: {error}"
            ) from None
        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            count = len(getattr(feature, kind).value) if kind else 0
            dtypes, counts = found.setdefault(name, (set(), []))
            dtypes.update([_KINDS[kind]] if kind else [])
            counts.append(count)
    return {
        name: (dtypes, set(counts) != {1} or len(counts) != len(records))
        for name, (dtypes, counts) in found.items()
    }


def _complete(path, features, column):
    if column.name not in features and not column.complete:
        raise ValueError(
            f"{path}: expected a feature '{column.name}', got {', '.join(sorted(features))} in the "
            f"first {_LOOKED_AT} records; give its Column dtype and is_list"
        )
    dtypes, is_list = features.get(column.name, (set(), column.is_list))
    if column.base != 10 or column.separator is not None:
        raise ValueError(f"column '{column.name}': expected no base and separator, for TFRecords")
    if column.dtype is None and len(dtypes) != 1:
        raise ValueError(
            f"{path}: feature '{column.name}': expected values of one dtype, got "
            f"{' and '.join(sorted(dtypes)) or 'none'}; give its Column a dtype"
        )
    is_list = is_list if column.is_list is None else column.is_list
    return dataclasses.replace(column, dtype=column.dtype or min(dtypes), is_list=is_list)


def _parsed_dtype(column):
    if column.dtype == "string":
        return tf.string
    return tf.float32 if column.dtype.startswith("float") else tf.int64


def _to_piece(unit, begin, serialized, columns, strict):
    spec = {
        column.name: tf.io.RaggedFeature(_parsed_dtype(column), row_splits_dtype=tf.int64)
        for column in columns
    }
    good, parsed, reason = _parse(serialized, spec, 0)
    num_rows, unfit, problem = len(serialized), {}, None
    bad = np.ones(num_rows, bool)
    bad[good] = False
    if bad.any():
        problem = (
            f"{unit.path}, row {begin + int(bad.argmax()) + 1}: expected a tf.train.Example with "
            f"{', '.join(f'{column.name} ({column.dtype})' for column in columns)}, got: {reason}"
        )
    arrays = {}
    for column in columns:
        arrays[column.name], unfit[column.name], got = _to_array(parsed[column.name], column)
        if unfit[column.name] is None:
            continue
        rows = good[unfit[column.name]]
        bad[rows] = True
        kind = f"a list of {column.dtype}" if column.is_list else f"one {column.dtype}"
        problem = problem or (
            f"{unit.path}, row {begin + int(rows[0]) + 1}, feature '{column.name}': expected "
            f"{kind}, got {got}"
        )
    if problem and strict:
        raise pieces.BadRow(f"{problem}; or give the reader on_bad_rows='skip'")
    piece = pieces.piece_of_good_rows(len(good), arrays, bad[good], problem)
    if not problem:
        return piece
    return pieces.Piece(num_rows, piece.arrays, np.flatnonzero(~bad), problem)


def _parse(serialized, spec, begin):
    """(numbers of the records that can be parsed, {name: [Ragged]}, the first error)"""
    try:
        with context.eager_mode(), tf.device("CPU"):
            parsed = tf.io.parse_example(serialized, spec)
            found = {
                name: Ragged(ragged.values.numpy(), ragged.row_splits.numpy())
                for name, ragged in parsed.items()
            }
        return np.arange(begin, begin + len(serialized)), found, None
    except tf.errors.InvalidArgumentError as error:
        if len(serialized) <= 1:
            return np.zeros(0, np.int64), None, error.message
    half = len(serialized) // 2
    first, one, reason = _parse(serialized[:half], spec, begin)
    second, two, later = _parse(serialized[half:], spec, begin + half)
    if one is None or two is None:
        return np.concatenate([first, second]), two if one is None else one, reason or later
    joined = {name: rows_of.join([one[name], two[name]]) for name in spec}
    return np.concatenate([first, second]), joined, reason or later


def _to_array(ragged, column):
    """(an array or a Ragged, bool of bad rows or None, the first bad value)"""
    values, bad_values = _convert(ragged.values, column)
    lengths, bad, got = np.diff(ragged.splits), None, None
    if bad_values is not None:
        rows = np.searchsorted(ragged.splits, np.flatnonzero(bad_values), "right") - 1
        bad, got = np.zeros(len(lengths), bool), str(ragged.values[bad_values][0])
        bad[rows] = True
    if column.is_list:
        return Ragged(values, ragged.splits), bad, got
    one = lengths == 1
    if one.all():
        return values, bad, got
    fits = one if column.missing is None else lengths <= 1
    array = np.zeros(len(lengths), column.numpy_dtype)
    if column.missing is not None:
        missing = column.missing
        array[:] = missing.encode() if isinstance(missing, str) else missing
    array[one] = values[ragged.splits[:-1][one]]
    if not fits.all():
        got = got or f"{lengths[~fits][0]} values"
        bad = ~fits if bad is None else bad | ~fits
    return array, bad, got


def _convert(values, column):
    """(the values in the column's dtype, bool of those that do not fit or None)"""
    if column.dtype == "string" or values.dtype == column.numpy_dtype:
        return values, None
    with np.errstate(all="ignore"):
        converted = values.astype(column.numpy_dtype)
    if column.dtype.startswith("float"):
        return converted, None
    bad = converted.astype(np.int64) != values
    if column.dtype == "uint64":
        bad |= values < 0
    return converted, bad if bad.any() else None
