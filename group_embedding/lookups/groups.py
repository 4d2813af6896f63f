"""The lookups of one call, in groups that one op serves each."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

from group_embedding.ops.lookup_group import LookupGroup
from group_embedding.ops.row_source import LOCAL_ROWS, RowSource
from group_embedding.ranks.sharding.gpu_lookup import (
    ROWS_OF_GPUS,
    SUMS_OF_GPUS,
    is_served_by_gpus,
    is_summed_by_gpus,
    refuse_on_gpus,
)
from group_embedding.ranks.sharding.sharded_lookup import (
    ROWS_OF_RANKS,
    describe_spread,
    refuse_norms_of_columns,
)
from group_embedding.ranks.sharding.two_levels import ROWS_BY_PROXIES, crosses_once


class ServedGroup(NamedTuple):
    """A group and what looks it up.

    One op, or one exchange, serves tables of this process of one dtype; tables over GPUs of one
    dtype, those whose owners send sums apart; or tables over ranks of any dtypes, those of two
    levels apart.
    """

    group: LookupGroup
    lookups: list  # the positions of its features in the call
    source: RowSource

    def exchange_ids(self, batch):
        """See `RowSource.exchange_ids`."""
        return self.source.exchange_ids(self.group, batch)

    def prefetch(self, batch):
        """See `RowSource.prefetch`."""
        return self.source.prefetch(self.group, batch)

    def fetch_ahead(self, batch):
        """See `RowSource.fetch_ahead`."""
        return self.source.fetch_ahead(self.group, batch)

    def look_up(self, batch, concat):
        """See `RowSource.look_up`."""
        return self.source.look_up(self.group, batch, concat)


@dataclasses.dataclass(frozen=True, eq=False)
class Lookups:
    """The lookups of a call without their ids: the table, feature and combiner of each."""

    tables: list  # of lookup_table.Table
    names: list  # of the features
    combiners: list
    prune_negative: bool
    invalid_ids: str

    def groups(self, inputs):
        """The groups of the lookups, each a ServedGroup.

        Args:
            inputs: of each feature its FeatureIds, or of each group its batch.
        """
        return self.groups_of(any(one.weighted for one in inputs))

    def groups_of(self, weighted):
        """`groups` of a call of which some feature has weights, or none."""
        return self._weighted_groups if weighted else self._plain_groups

    @functools.cached_property
    def _weighted_groups(self):
        return self._make_groups(weighted=True)

    @functools.cached_property
    def _plain_groups(self):
        return self._make_groups(weighted=False)

    def _make_groups(self, weighted):
        any_keyed = any(table.keyed is not None for table in self.tables)
        found = {}
        for i, table in enumerate(self.tables):
            source = _source_of(table, weighted)
            found.setdefault((source, *_kind_of(table, source, any_keyed)), []).append(i)
        return [self._group(lookups, source) for (source, *_), lookups in found.items()]

    def _group(self, lookups, source):
        numbers = _numbers([self.tables[i] for i in lookups])
        group = LookupGroup(
            list(numbers),
            [numbers[self.tables[i]] for i in lookups],
            [self.combiners[i] for i in lookups],
            [self.names[i] for i in lookups],
            self.prune_negative,
            self.invalid_ids,
        )
        return ServedGroup(group, lookups, source)

    def describe(self):
        """Describes the properties that must be the same where ids are routed and where they are
        looked up."""
        numbers = _numbers(self.tables)
        lines = []
        for table, name, combiner in zip(self.tables, self.names, self.combiners):
            spread = describe_spread if table.exchange else _describe_local
            limit = f", max_norm {table.max_norm:g}" if table.max_norm else ""
            lines.append(
                f"'{name}': {combiner} of table {numbers[table]}, '{table.name}', "
                f"{spread(table)}{limit}"
            )
        lines.append(f"invalid_ids '{self.invalid_ids}'")
        lines.append(
            "group_embedding_lookup_sparse" if self.prune_negative else "group_embedding_lookup"
        )
        return "\n".join(lines)


def _source_of(table, weighted):
    if not table.exchange:
        return LOCAL_ROWS
    refuse_on_gpus(table)
    refuse_norms_of_columns(table)
    if crosses_once(table):
        return ROWS_BY_PROXIES
    if is_summed_by_gpus(table):
        return SUMS_OF_GPUS
    return ROWS_OF_GPUS if is_served_by_gpus(table, weighted) else ROWS_OF_RANKS


def _kind_of(table, source, any_keyed):
    """The properties that tables of one group have in common.

    Ops that use a table run where it is: keyed tables of two devices need two, and so does a
    variable on a GPU beside a keyed table in host memory.
    """
    if source is LOCAL_ROWS:
        return table.dtype, table.device_type if any_keyed else None
    return table.exchange, table.dtype if source in (ROWS_OF_GPUS, SUMS_OF_GPUS) else None


def _numbers(tables):
    """{each table once: its number}"""
    return {table: number for number, table in enumerate(dict.fromkeys(tables))}


def _describe_local(table):
    return f"{table.dim} {table.dtype.name}"
