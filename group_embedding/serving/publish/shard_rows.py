"""Which rows changed of a table by row number that is spread over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from group_embedding.ranks.sharding import refuse_columns
from group_embedding.serving.publish.row_hashes import RowHashes
from group_embedding.serving.versions.variables_file import VariableChange


class ShardRows:
    """This rank's rows of a table, as readers of the target have them.

    A publish whose end is not known may have reached readers or not. Its rows are published again,
    until a publish is acknowledged.

    Args:
        key: The table's key in the checkpoint of the base.
        shard: The ShardedTable.
        read: Returns the values of its variable, [rows, dim].

    Raises:
        ValueError: The table is spread by columns.
    """

    def __init__(self, key: str, shard: Any, read: Callable[[], np.ndarray]) -> None:
        refuse_columns("Publisher", shard)
        self._key = key
        self._shard = shard
        self._read = read
        where, exchange = shard.placement, shard.exchange
        rank, num_ranks = exchange.rank, exchange.num_ranks
        self._num_rows = where.num_local_rows(shard.num_rows, rank, num_ranks)
        rows = where.rows_of(rank, num_ranks)
        self._first, self._stride = rows.start, rows.step
        self._published: RowHashes | None = None
        self._pending: RowHashes | None = None
        self._is_doubtful = np.zeros(self._num_rows, bool)

    def copy(self) -> np.ndarray:
        """The rows of now, [rows of this rank, dim]."""
        return self._read()[: self._num_rows]

    def start(self, values: np.ndarray) -> None:
        """Counts changes from these rows, which a base has."""
        self._published, self._pending = RowHashes(values), None
        self._is_doubtful[:] = False

    def changes(self, values: np.ndarray) -> VariableChange:
        """The rows that readers may not have."""
        rows, self._pending = self._published.changed(values)
        is_sent = self._is_doubtful.copy()
        is_sent[rows] = True
        sent = np.flatnonzero(is_sent).astype(np.int64)
        numbers = self._first + sent * self._stride
        return VariableChange(self._key, tuple(self._shard.shape), numbers, values[sent])

    def acknowledge(self) -> None:
        """Readers have the rows of the last `changes`."""
        if self._pending is not None:
            self._published, self._pending = self._pending, None
            self._is_doubtful[:] = False

    def fail(self) -> None:
        """Readers may or may not have the rows of the last `changes`."""
        if self._pending is not None:
            self._is_doubtful |= self._published.differs(self._pending)
            self._pending = None


def merged(changes: list[VariableChange]) -> list[VariableChange]:
    """Changes of the same variables by different ranks, as one for each variable."""
    by_key: dict[str, list[VariableChange]] = {}
    for change in changes:
        by_key.setdefault(change.key, []).append(change)
    found = []
    for key, parts in by_key.items():
        rows = np.concatenate([part.rows for part in parts])
        if len(rows):
            order = np.argsort(rows, kind="stable")
            values = np.concatenate([part.values for part in parts])[order]
            found.append(VariableChange(key, parts[0].shape, rows[order], values))
    return found
