"""The batches of one epoch of one rank: its order of rows, and how it goes on in the middle."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from group_embedding.recommender.data import columns as rows_of
from group_embedding.recommender.data.pieces import BadRow
from group_embedding.recommender.data.read_ahead import ReadAhead


class Position(NamedTuple):
    """Between two batches of a rank.

    Attributes:
      epoch: Epochs read to the end.
      batch: Batches of this epoch that were read.
      part: The rank's part of a unit, in the order of the epoch, in which the block begins.
      row: The row of the unit with which the block begins.
      taken: Rows of the block that are in batches before.
    """

    epoch: int = 0
    batch: int = 0
    part: int = 0
    row: int = 0
    taken: int = 0


class Part(NamedTuple):
    """Rows `begin` to `end` of a unit; `end` is None for all that follow."""

    unit: Any
    begin: int
    end: int | None


@dataclasses.dataclass
class Block:
    """Rows that are shuffled together: pieces that follow each other."""

    part: int
    row: int
    arrays: dict[str, Any]
    num_rows: int


def parts_of(units, counts, order, share):
    """The parts of units that a rank reads, a list.

    Args:
        units: all units.
        counts: rows of each; None, with `share`, for one rank that reads all.
        order: the numbers of the units in the order of this epoch.
        share: the rank's `Share`, or None.
    """
    if share is None:
        return [Part(units[i], 0, None) for i in order]
    parts, first = [], 0
    for i in order:
        begin, end = max(share.begin - first, 0), min(share.end - first, counts[i])
        if begin < end:
            parts.append(Part(units[i], begin, end))
        first += counts[i]
    return parts


class EpochReader:
    """Reads the batches of one epoch.

    Args:
        file_format: a `FileFormat`.
        columns: complete columns.
        parts: see `parts_of`.
        share: the rank's `Share`; None: batches end where the rows end. With a share, rows that
            lack at the end, because bad rows were left out, are read again from the beginning.
        options: an object with `batch_size`, `drop_remainder`, `shuffle_rows` (0: in the order of
            the files), `seed`, `rank`, `strict` and `num_threads`.
        note_bad: called with each piece that has bad rows.
    """

    def __init__(self, file_format, columns, parts, share, options, note_bad):
        self._format, self._columns, self._parts = file_format, columns, parts
        self._share, self._options, self._note_bad = share, options, note_bad

    def batches(self, start):
        """Generates (arrays by column name, the Position behind the batch) from `start` on."""
        last = None
        for batch in self._batches(start):
            if last is not None:
                yield last
            last = batch
        if last is not None:
            yield last[0], Position(start.epoch + 1)

    def _batches(self, start):
        number, pieces, have, block = start.batch, [], 0, None
        size = self._size_of(number)
        for block, offset in self._blocks(start):
            while offset < block.num_rows and size:
                end = min(offset + size - have, block.num_rows)
                pieces.append(self._cut(block, offset, end))
                have, offset = have + end - offset, end
                if have == size:
                    number += 1
                    position = Position(start.epoch, number, block.part, block.row, offset)
                    yield self._join(pieces), position
                    pieces, have, size = [], 0, self._size_of(number)
            if not size:
                return
        if have and not self._options.drop_remainder:
            yield self._join(pieces), Position(start.epoch + 1)

    def _size_of(self, number):
        """Rows of the batch with this number; 0 behind the last."""
        if self._share is None:
            return self._options.batch_size
        return self._share.size_of(number) if number < self._share.num_batches else 0

    @staticmethod
    def _cut(block, begin, end):
        return {name: rows_of.cut(array, begin, end) for name, array in block.arrays.items()}

    @staticmethod
    def _join(pieces):
        return {name: rows_of.join([piece[name] for piece in pieces]) for name in pieces[0]}

    def _blocks(self, start):
        """Generates (a block, how many of its rows are in batches before)."""
        taken, pieces, have, first, num_bad, before = start.taken, [], 0, None, 0, (-1, 0)
        sources = self._sources(start)
        for part, row, piece, is_first in ReadAhead(sources, self._options.num_threads):
            if is_first and piece.num_bad:
                self._note_bad(piece)
            if (part, row) <= before and have:  # again from the beginning: another block
                yield self._block(start.epoch, first, pieces, have), taken
                taken, pieces, have, first = 0, [], 0, None
            before = part, row
            first = first or (part, row)
            rows = piece.num_rows - piece.num_bad
            num_bad = 0 if rows else num_bad + piece.num_rows
            if self._share and num_bad > 2 * (self._share.end - self._share.begin):
                raise BadRow(f"reader: expected a good row, all are bad; {piece.problem}")
            if rows:
                pieces.append(piece.arrays)
                have += rows
            if have >= max(self._options.shuffle_rows, 1):
                yield self._block(start.epoch, first, pieces, have), taken
                taken, pieces, have, first = 0, [], 0, None
        if have:
            yield self._block(start.epoch, first, pieces, have), taken

    def _block(self, epoch, first, pieces, num_rows):
        block = Block(*first, self._join(pieces), num_rows)
        if self._options.shuffle_rows:
            seed = [self._options.seed, epoch, 1, self._options.rank, *first]
            order = np.random.default_rng(seed).permutation(num_rows)
            block.arrays = {name: rows_of.take(a, order) for name, a in block.arrays.items()}
        return block

    def _sources(self, start):
        """Generates functions that read the parts: with a share, again and again."""
        first = range(start.part, len(self._parts))
        again = itertools.cycle(range(len(self._parts))) if self._share else ()
        for count, part in enumerate(itertools.chain(first, again)):
            row = start.row if count == 0 else 0
            is_first = count < len(first)
            yield functools.partial(self._read, part, row, is_first)

    def _read(self, number, row, is_first):
        """Generates (the part's number, the piece's first row in the unit, the piece, is_first)."""
        part, begin = self._parts[number], 0
        first = max(part.begin, row)
        for piece in self._format.read(part.unit, self._columns, self._options.strict):
            end = begin + piece.num_rows
            if end > first and (part.end is None or begin < part.end):
                wanted = piece.cut(first - begin, piece.num_rows)
                wanted = wanted.cut(0, (part.end or end) - max(begin, first))
                yield number, max(begin, first), wanted, is_first
            begin = end
            if part.end is not None and begin >= part.end:
                return
        if part.end is not None:
            raise BadRow(
                f"{part.unit.path}: expected {part.end} rows in unit {part.unit.index}, as counted "
                f"before the first epoch, got {begin}; the file has changed"
            )
