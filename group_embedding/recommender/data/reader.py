"""`Reader`: batches of files of samples, as a `tf.data.Dataset`."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.arguments import check_positive
from group_embedding.files import DataSourceParams, is_remote
from group_embedding.ranks import exchange
from group_embedding.recommender.data import pieces
from group_embedding.recommender.data.columns import Column, complete_columns
from group_embedding.recommender.data.epoch import EpochReader, Position, parts_of
from group_embedding.recommender.data.files import find_files, size_of
from group_embedding.recommender.data.formats import format_of
from group_embedding.recommender.data.packing import Packing
from group_embedding.recommender.data.schema import Schema
from group_embedding.recommender.data.shards import share_of
from group_embedding.recommender.data.state import ReaderState


@dataclasses.dataclass(frozen=True)
class _Options:
    batch_size: int
    drop_remainder: bool
    shuffle_rows: int
    seed: int
    epochs: int | None
    rank: int
    num_ranks: int
    strict: bool
    num_threads: int


class Reader(tf.data.Dataset):
    """Batches of the rows of Parquet, CSV, TFRecord or binary files, streamed.

    An element is a dict from column names to Tensors [batch], or RaggedTensors [batch, None] for
    columns of lists; with `labels`, a pair of this dict and the labels. A reader is a
    `tf.data.Dataset`: `reader.map(layer.route)` packs the ids of batches ahead.

    Shuffled, an epoch has its own order, drawn from `seed`: of the row groups (or ranges of text)
    of all files, and of the rows of blocks of at least `shuffle_rows` rows of that order.

    Each rank has its own range of the rows of an epoch, without overlap or loss, and every rank has
    the same number of batches: ceil(ceil(rows / ranks) / batch_size), or with `drop_remainder`
    floor(floor(rows / ranks) / batch_size). On a rank that has one row less than others, the batch
    before the last may have `batch_size - 1` rows, so that the last has one. Rows that lack because
    bad rows were left out are read again, from the first of the rank. Several ranks count the lines
    of CSV files before the first epoch, which reads them once.

    Every iteration begins at `reader.state`. The state moves with `batches()`, with the Keras
    callback `CountBatches`, and with `state.advance()`. An iteration from a state between two
    batches goes on to the batches that would have followed.

    In memory are the pieces, of at most 65,536 rows, of as many row groups (or ranges of text) as
    there are threads, and the rows that are shuffled.

    Example:

    >>> with open("/tmp/ge_reader.csv", "w") as file:
    ...     _ = file.write("user,age,click\\n7,31,1\\n8,,0\\n9,54,1\\n")
    >>> columns = ["user", ge.data.Column("age", "float32", missing=-1)]
    >>> reader = ge.data.Reader("/tmp/ge_reader.csv", 2, columns, labels="click")
    >>> for features, label in reader:
    ...     print(features["user"].numpy(), features["age"].numpy(), label.numpy())
    [7 8] [31. -1.] [1 0]
    [9] [54.] [1]

    Args:
        files: A path, a folder or a glob, or several of them, of this machine or URLs: see
            `find_files`.
        batch_size: Rows of a batch.
        columns: Names or `Column`s, or a `Schema`, which has labels too; None: all that the first
            file has.
        labels: The name of the column with the label, or several names: then labels are a dict.
            They may lack in `columns`.
        groups: By the name of a feature, names of columns of one dtype: the feature is a Tensor
            [batch, columns] in place of them.
        format: "parquet", "csv", "tsv", "criteo", "tfrecord", "hugectr" or "torchrec", or a
            `FileFormat` such as `CsvFormat`; None: by the name of the first file.
        shuffle_rows: Rows that are shuffled together, at least; 0: files are read in order.
        seed: The seed of the orders of rows.
        epochs: How many epochs an iteration has; None: it never ends.
        drop_remainder: Leave out a last batch of fewer rows.
        rank, num_ranks: Which of how many ranks this is; None: as `ge.exchange.current()` says.
        on_bad_rows: "raise" makes a row that cannot be read an error with its file, number, column
            and value; "skip" leaves it out and counts it in `bad_rows`.
        num_threads: Threads that read; None: one for each core, at most 8, and 8 where the files
            are not on this machine.
        data_source: The file system of paths without a scheme; None: this machine's.

    Raises:
        ImportError: pyarrow is missing (the extra `parquet`), for Parquet and CSV.
        FileNotFoundError, TypeError, ValueError: An argument is not of the form above, or the first
            file has no such column.
        tf.errors.InvalidArgumentError: In an iteration, a bad row.
    """

    def __init__(
        self,
        files: str | os.PathLike | Sequence[str | os.PathLike],
        batch_size: int,
        columns: Sequence[str | Column] | Schema | None = None,
        labels: str | Sequence[str] | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        format: str | pieces.FileFormat | None = None,
        shuffle_rows: int = 0,
        seed: int = 0,
        epochs: int | None = 1,
        drop_remainder: bool = False,
        rank: int | None = None,
        num_ranks: int | None = None,
        on_bad_rows: str = "raise",
        num_threads: int | None = None,
        data_source: DataSourceParams | None = None,
    ) -> None:
        check_positive("batch_size", batch_size)
        for name, value in (("epochs", epochs), ("num_threads", num_threads)):
            if value is not None:
                check_positive(name, value)
        if on_bad_rows not in ("raise", "skip"):
            raise ValueError(f"on_bad_rows: expected 'raise' or 'skip', got {on_bad_rows!r}")
        if shuffle_rows < 0 or seed < 0:
            raise ValueError(
                f"expected shuffle_rows and seed of 0 or more, got {shuffle_rows} and {seed}"
            )
        if isinstance(columns, Schema):
            labels = columns.labels if labels is None else labels
            columns = columns.columns
        rank, num_ranks = _ranks(rank, num_ranks)
        self._files = find_files(files, data_source)
        # A request is waited for, without work for a core.
        cores = 8 if is_remote(self._files[0]) else len(os.sched_getaffinity(0))
        threads = num_threads or min(8, cores)
        self._options = _Options(
            *(int(batch_size), bool(drop_remainder), int(shuffle_rows), int(seed), epochs),
            *(rank, num_ranks, on_bad_rows == "raise", threads),
        )
        self._format = format_of(format, self._files[0])
        self._columns = complete_columns(self._format, self._files[0], columns, labels)
        groups = {name: tuple(names) for name, names in (groups or {}).items()}
        _check_groups(self._columns, labels, groups)
        labels = labels if labels is None or isinstance(labels, str) else tuple(labels)
        self._units, self._counts, self._bad_rows = None, None, 0
        self._first_problem = None
        self.state = ReaderState(self._fingerprint())
        size = int(batch_size) if drop_remainder else None
        self._packing = Packing(self._columns, labels, groups, size)
        flat = tf.data.Dataset.from_generator(
            self._generate, output_signature=self._packing.signature()
        )
        self._batches = flat.map(self._packing.unpack).prefetch(2)
        super().__init__(self._batches._variant_tensor)

    def _inputs(self):
        return [self._batches]

    @property
    def element_spec(self) -> Any:
        return self._batches.element_spec

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files, in order."""
        return tuple(self._files)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are read, complete, labels among them."""
        return self._columns

    @property
    def bad_rows(self) -> int:
        """How many bad rows were left out in what this process read, which is ahead of what is
        consumed."""
        return self._bad_rows

    @property
    def first_bad_row(self) -> str | None:
        """File, number, column and value of the first bad row that was left out."""
        return self._first_problem

    @property
    def num_rows(self) -> int:
        """The rows of all files, bad ones included; CSV files are read once to count them."""
        return sum(self._count())

    @property
    def num_batches(self) -> int:
        """The batches of one epoch on every rank, where no row is bad; see `num_rows`."""
        return self._share().num_batches

    def batches(self, dataset: tf.data.Dataset | None = None) -> Iterator[Any]:
        """Iterates from `state` on, and advances it by each batch before it is handed out.

        Args:
            dataset: a dataset that was made of this reader and has an element for each of its
                batches, as by `map` and `prefetch`; None: the reader.

        Yields:
            The batches.
        """
        for batch in self if dataset is None else dataset:
            self.state.advance()
            yield batch

    def _generate(self):
        """Generates batches from the state on, as tuples of arrays."""
        start, number = self.state.position, self.state.consumed
        epochs, first = self._options.epochs, self.state.position.epoch
        last = None if epochs is None else (first // epochs + 1) * epochs
        for epoch in itertools.count(first):
            if epoch == last:
                return
            start, before = start if epoch == first else Position(epoch), number
            for arrays, position in self._epoch(epoch).batches(start):
                number += 1
                self.state.note(number, position)
                yield self._packing.pack(arrays)
            if number == before:
                problem = self._first_problem or "the files have too few rows"
                raise ValueError(
                    f"reader: expected a batch of {self._options.batch_size} rows in an epoch, got "
                    f"none; {problem}"
                )

    def _epoch(self, epoch):
        units, share = self._list_units(), None
        if self._options.num_ranks > 1:
            self._count()
            share = self._share()
        order = np.arange(len(units))
        if self._options.shuffle_rows:
            order = np.random.default_rng([self._options.seed, epoch, 0]).permutation(order)
        parts = parts_of(units, self._counts, order, share)
        return EpochReader(self._format, self._columns, parts, share, self._options, self._note_bad)

    def _note_bad(self, piece):
        self._bad_rows += piece.num_bad
        self._first_problem = self._first_problem or piece.problem

    def _share(self):
        options = self._options
        return share_of(
            *(self.num_rows, options.rank, options.num_ranks),
            *(options.batch_size, options.drop_remainder),
        )

    def _list_units(self):
        if self._units is None:
            with concurrent.futures.ThreadPoolExecutor(self._options.num_threads) as pool:
                lists = list(pool.map(self._format.units, self._files))
            self._units = [unit for units in lists for unit in units]
        return self._units

    def _count(self):
        if self._counts is None:
            units = self._list_units()
            with concurrent.futures.ThreadPoolExecutor(self._options.num_threads) as pool:
                counted = pool.map(
                    lambda u: self._format.count(u) if u.num_rows is None else u.num_rows, units
                )
                self._counts = list(counted)
        return self._counts

    def _fingerprint(self):
        options = dataclasses.asdict(self._options)
        del options["epochs"], options["num_threads"]
        return {
            "files": [[os.path.basename(path), size_of(path)] for path in self._files],
            "columns": [repr(column) for column in self._columns],
            **options,
            "piece_rows": pieces.PIECE_ROWS,
        }


def _ranks(rank, num_ranks):
    current = exchange.current()
    num_ranks = current.num_ranks if num_ranks is None else num_ranks
    rank = current.rank if rank is None else rank
    check_positive("num_ranks", num_ranks)
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank: expected 0 to {num_ranks - 1}, as num_ranks is, got {rank}")
    return int(rank), int(num_ranks)


def _check_groups(columns, labels, groups):
    by_name = {column.name: column for column in columns}
    wanted = [] if labels is None else [labels] if isinstance(labels, str) else list(labels)
    for name in [*wanted, *(name for names in groups.values() for name in names)]:
        if name not in by_name:
            raise ValueError(f"expected a column '{name}', got {', '.join(by_name)}")
    for group, names in groups.items():
        if group in by_name and group not in names:
            raise ValueError(f"groups: expected a name that no column has, got '{group}'")
        kinds = {(by_name[name].dtype, by_name[name].is_list) for name in names}
        if len(kinds) != 1 or kinds.pop()[1] or set(names) & set(wanted):
            raise ValueError(
                f"groups: expected columns of one dtype for '{group}', without lists and labels, "
                f"got {', '.join(f'{n} ({by_name[n].dtype})' for n in names) or 'none'}"
            )
