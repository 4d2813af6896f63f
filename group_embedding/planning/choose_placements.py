"""The placements that each table of a model may have, the bytes that each sends, and the choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from group_embedding.config import FeatureConfig
from group_embedding.placement import (
    AUTO,
    COLUMNS,
    COLUMNS_SUMS,
    DISTRIBUTED,
    DISTRIBUTED_SUMS,
    REPLICATED,
    TWO_LEVELS,
    check_columns,
    crosses_once,
    is_by_columns,
    localized_rank,
    sends_sums,
    to_placement,
)
from group_embedding.planning.plan_tables import TablePlan
from group_embedding.planning.sample import SampleOfIds
from group_embedding.ranks.simulate import (
    COLUMN_ROWS,
    WHOLE,
    Job,
    TableOfModel,
    TracedIds,
    bytes_on_link,
)

SMALL_BYTES = 16 << 10  # a table up to this size costs more to ask for than to have
# Sums are chosen for so many of the bytes of rows, which go ahead of a step; columns for so many of
# those of rows or sums, as all ranks look up all ids.
_WORTH = 0.8
# Rows cross once a host where its ranks ask for them so many times: they then share them in memory.
_SHARED = 1.5


class PlacementChooser:
    """The tables of a model, and the bytes of each placement that they may have."""

    def __init__(
        self,
        features: Sequence[FeatureConfig],
        sample: SampleOfIds,
        plans: dict[str, TablePlan],
        job: Job,
        whole_bytes: int,
        is_in_host_memory: bool,
        is_on_gpus: bool,
        may_have_columns: bool,
    ):
        self._features, self._plans, self._job = features, plans, job
        self._whole_bytes = whole_bytes
        weighted = any(f.weights_feature and not f.is_sequence for f in features)
        self._may_send_sums = (is_in_host_memory or is_on_gpus) and not weighted
        self._is_in_host_memory = is_in_host_memory
        self._may_share_rows = is_in_host_memory and job.hosts > 1 and job.ranks_of_host > 1
        self._may_have_columns = may_have_columns
        self._configs = {feature.table.name: feature.table for feature in features}
        self._ids = {name: sample.of_table(name, features) for name in plans}
        self.models = {name: self._model_of(name, sample) for name in plans}

    def _model_of(self, name, sample):
        features = [feature for feature in self._features if feature.table.name == name]
        config, ids = self._configs[name], self._ids[name]
        keys = self._plans[name].keys
        return TableOfModel(
            name,
            keys,
            config.dim,
            len(ids) / sample.num_samples,
            TracedIds.of(ids, max(keys, 1)),
            features=len(features),
            trained=config.trainable,
            column_parts=self._job.ranks,
            row_bytes=tf.as_dtype(config.dtype).size,
        )

    def choose(self, name: str) -> tuple[str, str]:
        """(placement, reason) of a table."""
        config = self._configs[name]
        is_keyed, owner = config.num_rows is None, f"table '{name}'"
        if config.placement not in (None, AUTO):
            where = to_placement(owner, config.placement, self._job.ranks, keyed=is_keyed)
            if where is not None and where.is_by_columns:
                check_columns(owner, config.dim, self._job.ranks)
            return config.placement, "as its config says"
        if self._job.ranks == 1:
            return DISTRIBUTED, "one rank has all rows"
        size = self._size(name)
        if not is_keyed and size <= min(SMALL_BYTES, self._whole_bytes):
            return REPLICATED, "at most 16 KiB"
        rows = self.sent(name, DISTRIBUTED)
        if not is_keyed and size <= self._whole_bytes and self.sent(name, REPLICATED) <= rows:
            return REPLICATED, f"{_share(self.sent(name, REPLICATED), rows)} of the bytes of rows"
        return self._choose_spread(name, rows)

    def _choose_spread(self, name, rows):
        """(placement, reason) of a table that sends `rows` bytes by rows."""
        chosen, sent = DISTRIBUTED, rows
        busiest = rows * self._share_of_busiest(name)
        for word in self._other_words(name):
            of_all = busiest if chosen == DISTRIBUTED and is_by_columns(word) else sent
            worth = 1 / _SHARED if crosses_once(word) else _WORTH
            if self.sent(name, word) <= worth * of_all:
                chosen, sent = word, self.sent(name, word)
        if chosen == COLUMNS:
            return chosen, f"{_share(sent, busiest)} of the bytes of the busiest owner of rows"
        if chosen == TWO_LEVELS:
            return chosen, f"ranks of a host ask {rows / sent:.2f} times for a row"
        if chosen != DISTRIBUTED:
            return chosen, f"{_share(sent, rows)} of the bytes of rows"
        if not self._has_sums(name):
            return chosen, "rows: sums are for pooled ids without weights, on GPUs without keys"
        sums = min(self.sent(name, word) for word in self._other_words(name) if sends_sums(word))
        return chosen, f"sums would be {_share(sums, rows)} of the bytes"

    def _other_words(self, name) -> Iterator[str]:
        """The placements beside 'distributed' over which a table may be spread."""
        has_sums, has_columns = self._has_sums(name), self._has_columns(name)
        if self._may_share_rows:
            yield TWO_LEVELS
        if has_sums:
            yield DISTRIBUTED_SUMS
        if has_columns and self._is_in_host_memory:
            yield COLUMNS
        # An owner's sum of scaled rows needs their norms.
        if has_sums and has_columns and self._configs[name].max_norm is None:
            yield COLUMNS_SUMS

    def _has_columns(self, name):
        config = self._configs[name]
        is_divided = config.num_rows is not None and config.dim % self._job.ranks == 0
        return self._may_have_columns and is_divided

    def _share_of_busiest(self, name):
        """How many times as many bytes as on average the rank sends that has most of the rows asked
        for: row r lies on rank r % ranks."""
        ids, ranks = np.unique(self._ids[name]), self._job.ranks
        if self._configs[name].num_rows is None or not len(ids):  # hashes of keys are even
            return 1.0
        of_rows = np.bincount(ids % ranks).max() * ranks / len(ids)
        if not self.models[name].trained:
            return of_rows
        # It sends rows to all others, and gradients of those that the others have.
        return (of_rows * (ranks - 2) + ranks) / (2 * (ranks - 1))

    def _has_sums(self, name):
        sequences = any(f.is_sequence for f in self._features if f.table.name == name)
        is_keyed = self._configs[name].num_rows is None
        return self._may_send_sums and not sequences and (self._is_in_host_memory or not is_keyed)

    def _size(self, name):
        return self._plans[name].keys * self._plans[name].bytes_of_key

    def sent(self, name: str, word: str) -> float:
        """Bytes that a rank sends for a table in a step over the slower link that the job has."""
        return bytes_on_link(self.models[name], self._job, simulated_placement(word))

    def memory(self, name: str, word: str) -> float:
        """Bytes of a table on the rank that has most of it, at one of its placements."""
        is_spread = word != REPLICATED and localized_rank(word) is None
        return self._size(name) / (self._job.ranks if is_spread else 1)

    def crossings(self, name: str, word: str) -> int:
        """How often its step waits for other ranks: for ids, for rows or sums, and for gradients;
        tables that are whole have the last alone."""
        if self._job.ranks == 1:
            return 0
        return (0 if word == REPLICATED else 2) + bool(self.models[name].trained)


def simulated_placement(word):
    """The placement in the words of `ranks/simulate`, where tables of one rank are as many ranks'
    rows: on average each rank sends as much."""
    if word == REPLICATED:
        return WHOLE
    if is_by_columns(word):
        return "columns" if sends_sums(word) else COLUMN_ROWS
    if crosses_once(word):
        return "two_levels"
    return "owner_sums" if sends_sums(word) else "rows"


def _share(size, of):
    return f"{size / of:.2f}" if of else "none"
