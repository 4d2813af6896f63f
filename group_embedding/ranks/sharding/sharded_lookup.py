"""The lookup of tables that are spread over the ranks, of whatever dtypes, dims and placements.

    ids of this rank ── route ──> messages ══ alltoall ══> requests of all ranks
                          │                                      │ locate keys, look up local rows
        routed ids <──────┘                                      v
            │ lookup and combine <── unpack ══ alltoall ══ pack ── rows
            v
    one vector per sample

What stands to the left of the tables is `route_sharded`, the rest `look_up_sharded`: no table is
read before it, so that ids may go ahead of the step that looks them up, and nothing changes.

Gradients flow backwards through the same ops: the gradient of each unique row crosses once, divided
by the number of ranks (of replicas: as it is), and the owner sums what the ranks send. So a table's
gradient is that of the mean of the ranks' losses, ready for one update on its owner. All ranks take
part in both directions, also with an empty batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from group_embedding.ops.group_ids import Batch
from group_embedding.ops.group_lookup import group_lookup
from group_embedding.ops.local_lookup import bring_batch, locate_batch, look_up_batch
from group_embedding.ops.route_ids import Requests, RoutedTable, read_requests, route_ids
from group_embedding.types import InvalidIds

_ANY_KEY = -1  # in place of a number of rows


class RoutedBatch(NamedTuple):
    """A batch whose ids have been exchanged, and its rows not yet."""

    batch: Batch  # in terms of the rows that will come back
    counts: tf.Tensor  # int64 [ranks, tables]: rows asked of each rank
    requests: Requests  # what all ranks ask of this one


def route_sharded(
    tables: Sequence[Any],
    batch: Batch,
    table_of_feature: Sequence[int],
    combiners: Sequence[str],
    names: Sequence[str],
    *,
    prune_negative: bool,
    invalid_ids: InvalidIds,
) -> RoutedBatch:
    """Exchanges the ids of a packed batch. Its tables are spread over the ranks of one exchange.

    Takes what `ops.group_lookup.group_lookup` does. A bad id on any rank is an error on every rank,
    which names the rank that has it.
    """
    exchange = tables[0].exchange
    routed = [_as_routed(table) for table in tables]
    description = describe(tables, names, table_of_feature, combiners)
    route = route_ids(
        batch,
        exchange.num_ranks,
        routed,
        table_of_feature,
        combiners,
        description,
        prune_negative=prune_negative,
        invalid_ids=invalid_ids,
    )
    messages, splits = exchange.alltoall(
        route.messages, route.splits, "exchange_ids", f"the ids of {_summary(tables)}"
    )
    groups = _groups_of(tables)
    requests = read_requests(messages, splits, routed, groups, table_of_feature, names, description)
    return RoutedBatch(route.batch, route.counts, requests)


def bring_sharded(tables: Sequence[Any], routed: RoutedBatch) -> RoutedBatch:
    """Returns the batch, of which the rows that all ranks request from this one begin to move to
    the first tier of their tables."""
    groups, batches = _groups_of(tables), []
    for group, batch in enumerate(routed.requests.batches):
        of_group = [table.of_this_rank() for table, of in zip(tables, groups) if of == group]
        batches.append(bring_batch(of_group, batch, list(range(len(of_group)))))
    return routed._replace(requests=routed.requests._replace(batches=batches))


def look_up_sharded(
    tables: Sequence[Any],
    routed: RoutedBatch,
    table_of_feature: Sequence[int],
    combiners: Sequence[str],
    names: Sequence[str],
    *,
    concat: bool,
) -> list[tf.Tensor]:
    """Looks a RoutedBatch up in the tables that it was routed for.

    Takes and returns what `ops.group_lookup.group_lookup` does; with `concat`, tables are of one
    dtype.
    """
    matrices = _fetch_rows(tables, routed)
    outputs = group_lookup(
        [table.with_source(matrix, tf.float32) for table, matrix in zip(tables, matrices)],
        routed.batch,
        table_of_feature,
        combiners,
        names,
        concat=concat,
        prune_negative=True,  # the routed ids: -1 is left out, one past the end reads zeros
        invalid_ids="ignore",
    )
    tables_of_outputs = [0] if concat else table_of_feature
    return [tf.cast(o, tables[t].dtype) for o, t in zip(outputs, tables_of_outputs)]


def _as_routed(table):
    if table.keyed is not None:
        return RoutedTable(table.name, _ANY_KEY, table.keyed.placement)
    shard = table.source.object
    return RoutedTable(table.name, shard.num_rows, shard.placement)


def describe(tables, names, table_of_feature, combiners):
    """All that the ranks must agree on."""
    exchange = tables[0].exchange
    lines = [f"table '{table.name}': {describe_spread(table)}{_limit(table)}" for table in tables]
    lines += [
        f"feature '{name}': {combiner} of table '{tables[t].name}'"
        for name, t, combiner in zip(names, table_of_feature, combiners)
    ]
    return "\n".join([*lines, f"rows sent as {exchange.comm_dtype or 'they are'}"])


def _summary(tables):
    """A lookup in one line, for a person."""
    most = 8
    names = ", ".join(f"'{table.name}'" for table in tables[:most])
    more = f" and {len(tables) - most} more" if len(tables) > most else ""
    return f"a lookup of table{'s' if len(tables) > 1 else ''} {names}{more}"


def _limit(table):
    return f", max_norm {table.max_norm:g}" if table.max_norm else ""


def describe_spread(table: Any) -> str:
    """Describes a table's size and placement."""
    num_rows, placement = _as_routed(table)[1:]
    rows = "keys" if num_rows == _ANY_KEY else f"{num_rows} rows"
    return (
        f"{rows} of {table.dim} {table.dtype.name}, {placement}, "
        f"over {table.exchange.num_ranks} ranks"
    )


def _groups_of(tables):
    """For each table, the index of the lookup that serves it on its owner: one lookup for each
    dtype and, as ops run on the device of keyed tables, each device."""
    kinds = [(table.dtype, table.device_type) for table in tables]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return [numbers[kind] for kind in kinds]


def _fetch_rows(tables, routed):
    """The rows that this rank requests, one float32 [rows, dim] per table."""
    exchange, requests = tables[0].exchange, routed.requests
    # Rows are sent unscaled: the requesting rank scales them to max_norm.
    owned = [table.of_this_rank()._replace(max_norm=0.0) for table in tables]
    wire = [exchange.comm_dtype or table.dtype for table in tables]
    counts = requests.counts, routed.counts
    called = ("exchange_rows", f"the rows of {_summary(tables)}")
    if len(requests.batches) == 1 and exchange.looks_up(owned):
        places = list(range(len(tables)))
        batch = locate_batch(owned, requests.batches[0], places, requests.times[0])
        return exchange.look_up_rows(owned, batch, *counts, wire, *called)
    rows = _look_up_owned(owned, _groups_of(tables), requests)
    dims = [table.dim for table in tables]
    return exchange.exchange_rows(rows, *counts, dims, wire, *called)


def _look_up_owned(tables, groups, requests):
    """The rows that all ranks request from this one, one [rows, dim] per table."""
    rows = [None] * len(tables)
    for group, batch in enumerate(requests.batches):
        places = [t for t, of in enumerate(groups) if of == group]
        found = look_up_batch(
            [tables[t] for t in places],
            batch,
            list(range(len(places))),
            ["sum"] * len(places),
            [tables[t].name for t in places],
            times=requests.times[group],
            concat=False,
            prune_negative=False,
            invalid_ids="raise",
        )
        for t, matrix in zip(places, found):
            rows[t] = matrix
    return rows
