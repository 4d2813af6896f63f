"""How many different ids are among n ids of a table: by a law, or by a trace of real ids."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from group_embedding.config import check_int, check_not_negative

_MAX_BINS = 4000  # of ranks of popularity, which are drawn together


class IdSource(Protocol):
    """The ids of one feature."""

    def unique(self, count: float) -> float:
        """The expected number of different ids among `count` of them."""


@dataclasses.dataclass(frozen=True)
class ZipfIds:
    """Ids by Zipf's law, bounded to a table.

    Attributes:
      rows: The number of rows of the table.
      alpha: The exponent of the law; 0: uniform ids.
    """

    rows: int
    alpha: float = 0.0

    def __post_init__(self) -> None:
        check_int("Zipf's law", "rows", self.rows, at_least=1)
        check_not_negative("Zipf's law", "alpha", self.alpha)

    def unique(self, count: float) -> float:
        # An id of probability p is missing from n draws with probability (1 - p)^n.
        missing = count * np.log1p(-np.minimum(self._per_id, 1 - 1e-15))
        return float(np.sum(self._ids * -np.expm1(missing)))

    @property
    def _edges(self):
        """Ranks of popularity, from 1 on, at which a bin begins; the last bin's end."""
        edges = np.floor(np.geomspace(1, self.rows + 1, min(self.rows + 1, _MAX_BINS)) + 1e-9)
        return np.unique(edges)

    @property
    def _ids(self):
        return np.diff(self._edges)

    @property
    def _per_id(self):
        """The probability of each id of a bin."""
        edges = self._edges
        if self.alpha == 1:
            mass = np.diff(np.log(edges)) / np.log(self.rows + 1)
        else:
            powers = edges ** (1 - self.alpha)
            mass = np.diff(powers) / (powers[-1] - powers[0])
        return mass / self._ids


@dataclasses.dataclass(frozen=True)
class TracedIds:
    """Ids as they were counted in a trace.

    Attributes:
      counts: How often each id of the trace is in it, int64 [number of different ids].
      rows: The number of rows of the table, which no batch exceeds.
    """

    counts: np.ndarray
    rows: int

    @classmethod
    def of(cls, ids: np.ndarray, rows: int) -> TracedIds:
        """Counts the ids of a trace, an integer array of any shape."""
        ids = np.asarray(ids).ravel()
        if ids.size < 2:
            raise ValueError(f"a trace: expected at least 2 ids of each table, got {ids.size}")
        return cls(np.unique(ids, return_counts=True)[1], rows)

    def unique(self, count: float) -> float:
        size = float(self.counts.sum())
        if count <= size:
            return self._among(count / size)
        # Beyond the trace the number grows as it did over its last half (Heaps' law).
        growth = np.log2(self._among(1.0) / self._among(0.5))
        return float(min(self._among(1.0) * (count / size) ** growth, self.rows))

    def _among(self, share):
        """Different ids in a random part of the trace."""
        if share >= 1:
            return float(self.counts.size)
        return float(np.sum(-np.expm1(self.counts * np.log1p(-share))))
