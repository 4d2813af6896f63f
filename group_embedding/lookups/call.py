"""The lookups of one call: those that one op can serve form a group.

A group is looked up in three steps. The ids are packed into one batch. Where rows are spread over
ranks, the ids are exchanged. The first two steps need the ids alone; the third reads the tables.
"""

import dataclasses
import functools
from typing import NamedTuple

import tensorflow as tf

from group_embedding.lookups.deferred_lookup import defer_lookup
from group_embedding.ops.check_ids import NOT_CHECKED, check_ids
from group_embedding.ops.deferred import is_deferring
from group_embedding.ops.local_lookup import bring_batch, look_up_batch, pack_batch
from group_embedding.ranks.sharding.gpu_lookup import is_served_by_gpus, look_up_on_gpus
from group_embedding.ranks.sharding.sharded_lookup import (
    RoutedBatch,
    bring_sharded,
    describe_spread,
    look_up_sharded,
    route_sharded,
)


@dataclasses.dataclass(frozen=True)
class Call:
    """The lookups of a call without their ids: the table, feature and combiner of each."""

    tables: list  # of lookup_table.Table
    names: list  # of the features
    combiners: list
    prune_negative: bool
    invalid_ids: str

    def pack(self, features):
        """Packs the ids of all lookups: an `ops.group_ids.Batch` per group. No rank waits for it.

        Args:
            features: a FeatureIds per lookup.
        """
        for table, feature in zip(self.tables, features):
            table.check_ids(feature.name, feature.values.dtype)
        groups = self._groups(any(feature.weights is not None for feature in features))
        packed = [
            pack_batch(group.tables, [features[i] for i in group.lookups], group.table_of_feature)
            for group in groups
        ]
        return self._refuse_bad_ids(groups, packed)

    def _refuse_bad_ids(self, groups, packed):
        """Returns `packed`, of which the ids have been checked that a lookup would refuse too late.

        A lookup of a keyed table inserts and counts keys, and must not do so in a step that another
        table's id ends. A GPU reports a bad id when the step's updates are on their way.
        """
        any_keyed = any(table.keyed is not None for table in self.tables)
        if self.invalid_ids != "raise" or not (any_keyed or _has_gpu()):
            return packed
        num_rows = [
            [_num_rows_to_check(table, batch, any_keyed) for table in group.tables]
            for group, batch in zip(groups, packed)
        ]
        if all(number is NOT_CHECKED for of_group in num_rows for number in of_group):
            return packed
        return check_ids(
            packed,
            num_rows,
            [group.table_of_feature for group in groups],
            [group.combiners for group in groups],
            [[table.name for table in group.tables] for group in groups],
            [group.names for group in groups],
            prune_negative=self.prune_negative,
        )

    def route(self, packed):
        """Exchanges the ids of groups whose rows are spread over ranks, unless that is done.

        Args:
            packed: what `pack` returned, or this method.

        Returns:
            Per group a `RoutedBatch`, or the `Batch` of a group that is not exchanged beforehand.
        """
        groups = self._groups(any(_is_weighted(batch) for batch in packed))
        return [self._route_group(*given) for given in zip(groups, packed)]

    def _route_group(self, group, batch):
        if not group.is_exchanged_first or isinstance(batch, RoutedBatch):
            return batch
        given = (group.tables, batch, group.table_of_feature, group.combiners, group.names)
        return route_sharded(*given, **self._id_rules())

    def bring_rows(self, routed):
        """Has rows of the batch begin to move to the first tier of their tables.

        Args, returns: what `route` returned.
        """
        groups = self._groups(any(_is_weighted(batch) for batch in routed))
        return [self._bring_rows_of_group(*given) for given in zip(groups, routed)]

    @staticmethod
    def _bring_rows_of_group(group, batch):
        if group.is_served_by_gpus:  # which exchange keys in the lookup
            return batch
        if isinstance(batch, RoutedBatch):
            return bring_sharded(group.tables, batch)
        return bring_batch(group.tables, batch, group.table_of_feature)

    def look_up(self, packed, concat):
        """Looks up what `pack` or `route` returned.

        Returns:
            A result per lookup; with `concat` one tensor with the results side by side.
        """
        if is_deferring():
            return defer_lookup(self, packed, concat)
        routed = self.route(packed)
        dtypes = list(dict.fromkeys(table.dtype.name for table in self.tables))
        if concat and len(dtypes) > 1:
            raise ValueError(f"concat: expected tables of one dtype, got {dtypes}")
        groups = self._groups(any(_is_weighted(of_group) for of_group in routed))
        if concat and len(groups) == 1:
            return self._look_up_group(groups[0], routed[0], concat=True)[0]
        results = [None] * len(self.tables)
        for group, routed_group in zip(groups, routed):
            outputs = self._look_up_group(group, routed_group, concat=False)
            for i, output in zip(group.lookups, outputs):
                results[i] = output
        return tf.concat(results, axis=-1) if concat else results

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

    def _id_rules(self):
        return {"prune_negative": self.prune_negative, "invalid_ids": self.invalid_ids}

    def _groups(self, weighted):
        """weighted: whether some lookup has weights."""
        return self._weighted_groups if weighted else self._plain_groups

    @functools.cached_property
    def _weighted_groups(self):
        return self._make_groups(weighted=True)

    @functools.cached_property
    def _plain_groups(self):
        return self._make_groups(weighted=False)

    def _make_groups(self, weighted):
        # Ops that use a table run where it is: keyed tables of two devices need two, and so does a
        # variable on a GPU beside a keyed table in host memory. One exchange serves all tables, but
        # for those that GPUs serve themselves.
        any_keyed = any(table.keyed is not None for table in self.tables)
        lookups_of = {}
        for i, table in enumerate(self.tables):
            kind = (table.dtype, table.device_type if any_keyed else None)
            on_gpus = bool(table.exchange) and is_served_by_gpus(table, weighted)
            if table.exchange:
                kind = (table.exchange, table.dtype) if on_gpus else table.exchange
            lookups_of.setdefault((kind, on_gpus), []).append(i)
        return [self._group(lookups, on_gpus) for (_, on_gpus), lookups in lookups_of.items()]

    def _group(self, lookups, on_gpus):
        """Tables of this rank alone, or spread over GPUs, of one dtype; or over ranks, of any."""
        numbers = _numbers([self.tables[i] for i in lookups])
        return _Group(
            lookups,
            list(numbers),
            [numbers[self.tables[i]] for i in lookups],
            [self.combiners[i] for i in lookups],
            [self.names[i] for i in lookups],
            on_gpus,
        )

    def _look_up_group(self, group, routed, concat):
        given = (group.tables, routed, group.table_of_feature, group.combiners, group.names)
        if group.is_exchanged_first:
            return look_up_sharded(*given, concat=concat)
        look_up = look_up_on_gpus if group.is_served_by_gpus else look_up_batch
        return look_up(*given, concat=concat, **self._id_rules())


class _Group(NamedTuple):
    """The lookups that are served together."""

    lookups: list  # their positions in the call
    tables: list  # each once
    table_of_feature: list
    combiners: list
    names: list
    is_served_by_gpus: bool  # of several ranks: the op itself exchanges ids and rows

    @property
    def is_exchanged_first(self):
        """Returns whether ids are exchanged before the lookup."""
        return bool(self.tables[0].exchange) and not self.is_served_by_gpus


@functools.cache
def _has_gpu():
    return bool(tf.config.list_physical_devices("GPU"))


def _num_rows_to_check(table, batch, any_keyed):
    """The number of rows that a table's ids are checked against, or NOT_CHECKED. The ids of a table
    over ranks are checked as they are exchanged, so that the ranks fail together. For those that
    are on a GPU already, nothing waits unless a keyed table would change."""
    if table.keyed is not None or table.exchange:
        return NOT_CHECKED
    late = table.device_type == "GPU" and "CPU" in (batch.buffer.device or "")
    return table.num_rows() if any_keyed or late else NOT_CHECKED


def _is_weighted(routed):
    batch = routed.batch if isinstance(routed, RoutedBatch) else routed
    return batch.weighted


def _numbers(tables):
    """{each table once: its number}"""
    return {table: number for number, table in enumerate(dict.fromkeys(tables))}


def _describe_local(table):
    return f"{table.dim} {table.dtype.name}"
