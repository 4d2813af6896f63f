"""`ParquetDataset`: DeepRec's dataset of that name, by pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from group_embedding.arguments import check_positive
from group_embedding.compat.deeprec.parquet.columns import arrays_of, read_fields
from group_embedding.compat.deeprec.parquet.dataframe import DataFrame, _Field
from group_embedding.recommender.data import arrow


class ParquetDataset(tf.data.Dataset):
    """Batches of samples of Parquet files, read row group by row group.

    An element is a dict from the name of each field to a Tensor [batch], a RaggedTensor [batch,
    None, ...] with row splits of int32 where samples have lists, or a Tensor [batch, *shape] for a
    field with a shape. Batches have samples of one file. Only the row groups that are being read
    are in memory.

    Args:
        filenames: a path, a list of paths, or a string tensor or `tf.data.Dataset` of paths.
        batch_size: samples of a batch; the last one of a file may have fewer.
        fields: names or `DataFrame.Field`s; None: all of the first file. Paths in a tensor or a
            dataset need `DataFrame.Field`s with dtype and ragged_rank.
        partition_count, partition_index: read only each `partition_count`-th row group of each
            file, from number `partition_index` on: each of several readers one partition.
        drop_remainder: leave out batches of fewer than `batch_size` samples.
        num_parallel_reads: None: one file after the other; otherwise how many are read at once (or
            `tf.data.AUTOTUNE`), in any order.
        num_sequential_reads: how many batches of one file follow each other, of files that are
            read at once.

    Raises:
        ImportError: pyarrow is missing (the extra `parquet`).
        ValueError: an argument is out of its range, a field is missing or of another type.
        tf.errors.InvalidArgumentError: when it is read, a null, or a list that is not of its shape.

    Example:

    >>> import pyarrow, pyarrow.parquet
    >>> table = pyarrow.table({"user": [7, 8, 9], "clicks": [[1], [], [2, 3]]})
    >>> pyarrow.parquet.write_table(table, "/tmp/samples.parquet")
    >>> for batch in ge.parquet.ParquetDataset("/tmp/samples.parquet", batch_size=2):
    ...     print(batch["user"].numpy(), batch["clicks"].to_list())
    [7 8] [[1], []]
    [9] [[2, 3]]
    """

    @classmethod
    def read_schema(
        cls,
        filename: str,
        fields: Sequence[str | _Field] | None = None,
        lower: bool = False,
    ) -> tuple[_Field, ...]:
        """Reads what columns a file has.

        Args:
            filename: its path.
            fields: names or `DataFrame.Field`s; None: all.
            lower: look up in lower case the names that the file does not have.

        Returns:
            A tuple of `DataFrame.Field`.
        """
        return read_fields(filename, fields, lower)

    def __init__(
        self,
        filenames: Any,
        batch_size: int = 1,
        fields: Sequence[str | _Field] | None = None,
        partition_count: int = 1,
        partition_index: int = 0,
        drop_remainder: bool = False,
        num_parallel_reads: int | None = None,
        num_sequential_reads: int = 1,
    ) -> None:
        arrow()
        check_positive("batch_size", batch_size)
        check_positive("partition_count", partition_count)
        check_positive("num_sequential_reads", num_sequential_reads)
        if not 0 <= partition_index < partition_count:
            raise ValueError(
                f"partition_index: expected 0 to {partition_count - 1}, as partition_count is "
                f"{partition_count}, got {partition_index}"
            )
        filenames, self._fields = _files_and_fields(filenames, fields)
        self._partition_count, self._partition_index = partition_count, partition_index
        self._drop_remainder = drop_remainder
        reader = _Reader(
            self._fields, int(batch_size), partition_count, partition_index, drop_remainder
        )
        if num_parallel_reads is None:
            self._batches = filenames.flat_map(reader.dataset_of)
        else:
            self._batches = filenames.interleave(
                reader.dataset_of,
                cycle_length=num_parallel_reads,
                block_length=num_sequential_reads,
                num_parallel_calls=num_parallel_reads,
                deterministic=False,
            )
        super().__init__(self._batches._variant_tensor)

    @property
    def fields(self) -> tuple[_Field, ...]:
        """A tuple of `DataFrame.Field`."""
        return self._fields

    @property
    def partition_count(self) -> int:
        """How many readers share the row groups."""
        return self._partition_count

    @property
    def partition_index(self) -> int:
        """Which of these readers this one is, from 0."""
        return self._partition_index

    @property
    def drop_remainder(self) -> bool:
        """If True, batches of fewer than `batch_size` samples are left out."""
        return self._drop_remainder

    def _inputs(self):
        return [self._batches]

    @property
    def element_spec(self) -> dict[str, tf.TypeSpec]:
        return self._batches.element_spec


def read_parquet(
    batch_size: int,
    fields: Sequence[str | _Field] | None = None,
    partition_count: int = 1,
    partition_index: int = 0,
    drop_remainder: bool = False,
    num_parallel_reads: int | None = None,
    num_sequential_reads: int = 1,
) -> Callable[[tf.data.Dataset], ParquetDataset]:
    """A function for `filenames.apply`, which makes a ParquetDataset of a dataset of paths.

    Args:
        batch_size, fields, partition_count, partition_index: see `ParquetDataset`.
        drop_remainder, num_parallel_reads, num_sequential_reads: see `ParquetDataset`.

    Returns:
        The function.
    """
    return lambda filenames: ParquetDataset(
        filenames,
        batch_size,
        fields,
        partition_count,
        partition_index,
        drop_remainder,
        num_parallel_reads,
        num_sequential_reads,
    )


def _files_and_fields(filenames, fields):
    """(a dataset of paths, complete fields)"""
    known = filenames if isinstance(filenames, (list, tuple)) else [filenames]
    if not known:
        raise ValueError("filenames: expected one path or more, got none")
    if all(isinstance(name, (str, bytes)) for name in known):
        paths = tf.data.Dataset.from_tensor_slices(tf.constant(list(known), tf.string))
        return paths, read_fields(known[0], fields)
    incomplete = not fields or any(
        not isinstance(field, DataFrame.Field) or field.incomplete for field in fields
    )
    if incomplete:
        raise ValueError(
            "fields: expected DataFrame.Field with dtype and ragged_rank, as the paths are not "
            f"known yet, got {fields!r}"
        )
    if not isinstance(filenames, tf.data.Dataset):
        filenames = tf.reshape(tf.convert_to_tensor(filenames, tf.string), [-1])
        filenames = tf.data.Dataset.from_tensor_slices(filenames)
    elif filenames.element_spec.dtype != tf.string:
        raise ValueError(
            f"filenames: expected a dataset of strings, got one of {filenames.element_spec}"
        )
    return filenames, tuple(fields)


class _Reader:
    """The batches of one file."""

    def __init__(self, fields, batch_size, partition_count, partition_index, drop_remainder):
        self._fields, self._batch_size = fields, batch_size
        self._partition = partition_index, partition_count
        self._drop_remainder = drop_remainder

    def dataset_of(self, filename):
        flat = tf.data.Dataset.from_generator(
            self._read, args=[filename], output_signature=tuple(self._specs())
        )
        return flat.map(self._pack)

    def _specs(self):
        size = self._batch_size if self._drop_remainder else None
        for field in self._fields:
            is_ragged = field.ragged_rank > 0 and field.shape is None
            shape = [] if field.shape is None else field.shape.as_list()
            yield tf.TensorSpec([None] if is_ragged else [size, *shape], field.dtype)
            if is_ragged:
                outer = None if size is None else size + 1
                yield tf.TensorSpec([outer], tf.int32)
                for _ in range(field.ragged_rank - 1):
                    yield tf.TensorSpec([None], tf.int32)

    def _read(self, filename):
        """Generates the batches as flat tuples of arrays."""
        filename = filename.decode()
        read_fields(filename, self._fields)
        with arrow().parquet.ParquetFile(filename) as file:
            index, count = self._partition
            row_groups = list(range(index, file.num_row_groups, count))
            if not row_groups:
                return
            for batch in self._batches(file, row_groups):
                yield tuple(
                    array for field in self._fields for array in arrays_of(filename, batch, field)
                )

    def _batches(self, file, row_groups):
        """Generates pyarrow.Tables of `batch_size` rows, and one of the rest."""
        names = [field.name for field in self._fields]
        pieces, num_rows = [], 0
        for piece in file.iter_batches(self._batch_size, row_groups, names):
            pieces.append(piece)  # which may be smaller, where a row group ends
            num_rows += piece.num_rows
            if num_rows >= self._batch_size:
                table = arrow().Table.from_batches(pieces)
                yield table.slice(0, self._batch_size)
                pieces = table.slice(self._batch_size).to_batches()
                num_rows -= self._batch_size
        if num_rows and not self._drop_remainder:
            yield arrow().Table.from_batches(pieces)

    def _pack(self, *arrays):
        arrays, features = iter(arrays), {}
        for field in self._fields:
            values = next(arrays)
            if field.ragged_rank > 0 and field.shape is None:
                splits = [next(arrays) for _ in range(field.ragged_rank)]
                values = tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False)
            features[field.name] = values
        return features
