"""The lookup of tables that are spread over the ranks, of whatever dtypes and dims.

    ids of this rank ── route ──> messages ══ alltoall ══> requests of all ranks
                          │                                      │ locate keys, look up local rows
        routed ids <──────┘                                      v
            │ lookup and combine <── unpack ══ alltoall ══ pack ── rows
            v
    one vector per sample

Gradients flow backwards through the same ops: the gradient of each unique row crosses once, divided
by the number of ranks (of replicas: as it is), and the owner sums what the ranks send. So a table's
gradient is that of the mean of the ranks' losses, ready for one update on its owner. All ranks take
part in both directions, also with an empty batch.
"""

import tensorflow as tf

from group_embedding.local_lookup import look_up_batch
from group_embedding.ops.group_ids import group_ids
from group_embedding.ops.group_lookup import group_lookup
from group_embedding.ops.route_ids import RoutedTable, read_requests, route_ids

_ANY_KEY = -1  # in place of a number of rows


def look_up_sharded(
    tables,
    features,
    table_of_feature,
    combiners,
    *,
    concat,
    prune_negative,
    invalid_ids,
):
    """Looks `features` up in `tables`, which are spread over the ranks of one exchange.

    Takes and returns what `ops.group_lookup.group_lookup` does; with `concat`, tables are of one
    dtype. A bad id on any rank is an error on every rank, which names the rank that has it.
    """
    exchange = tables[0].exchange
    names = [feature.name for feature in features]
    routed = [_as_routed(table) for table in tables]
    description = _describe(exchange, tables, routed, names, table_of_feature, combiners)
    by_key = [f for f, t in enumerate(table_of_feature) if tables[t].keyed is not None]
    wire = [exchange.comm_dtype or table.dtype for table in tables]

    route = route_ids(
        group_ids(features, by_key),
        exchange.num_ranks,
        routed,
        table_of_feature,
        combiners,
        description,
        prune_negative=prune_negative,
        invalid_ids=invalid_ids,
    )
    messages, splits = exchange.alltoall(route.messages, route.splits, "exchange_ids")
    groups = _groups_of(tables)
    requests = read_requests(messages, splits, routed, groups, table_of_feature, names, description)
    matrices = exchange.exchange_rows(
        _look_up_owned(tables, groups, requests),
        requests.counts,
        route.counts,
        [table.dim for table in tables],
        wire,
        "exchange_rows",
    )
    outputs = group_lookup(
        [table.with_source(matrix, tf.float32) for table, matrix in zip(tables, matrices)],
        route.batch,
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


def _describe(exchange, tables, routed, names, table_of_feature, combiners):
    """All that the ranks must agree on."""
    lines = [
        f"table '{table.name}': {'keys' if to.num_rows == _ANY_KEY else f'{to.num_rows} rows'} of "
        f"{table.dim} {table.dtype.name}, {to.placement}, over {exchange.num_ranks} ranks"
        for table, to in zip(tables, routed)
    ]
    lines += [
        f"feature '{name}': {combiner} of table '{tables[t].name}'"
        for name, t, combiner in zip(names, table_of_feature, combiners)
    ]
    return "\n".join([*lines, f"rows sent as {exchange.comm_dtype or 'they are'}"])


def _groups_of(tables):
    """Of each table, the number of the lookup that serves it on its owner: one for each dtype and,
    as ops run where keyed tables are, each device."""
    kinds = [(table.dtype, table.device_type) for table in tables]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return [numbers[kind] for kind in kinds]


def _look_up_owned(tables, groups, requests):
    """The rows that all ranks ask for, one [rows, dim] per table."""
    rows = [None] * len(tables)
    for group, batch in enumerate(requests.batches):
        places = [t for t, of in enumerate(groups) if of == group]
        found = look_up_batch(
            [tables[t].of_this_rank() for t in places],
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
