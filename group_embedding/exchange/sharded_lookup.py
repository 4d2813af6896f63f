"""The lookup of one group in tables that are sharded over the ranks.

    ids of this rank ── route ──> messages ══ alltoall ══> requests of all ranks
                          │                                      │ lookup of local rows
        routed ids <──────┘                                      v
            │ lookup and combine <── unpack ══ alltoall ══ pack ── rows
            v
    one vector per sample

Gradients flow backwards through the same ops: the gradient of each unique row crosses once, and the
owner sums what the ranks send. All ranks take part in both directions, also with an empty batch.
"""

from group_embedding.ops.group_ids import group_ids
from group_embedding.ops.group_lookup import group_lookup
from group_embedding.ops.pack_rows import pack_rows, unpack_rows
from group_embedding.ops.route_ids import read_requests, route_ids


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
    """Looks `features` up in `tables`, whose sources are ShardedTables of one exchange.

    Takes and returns what `ops.group_lookup.group_lookup` does. A bad id on any rank is an error on
    every rank, which names the rank that has it.
    """
    shards = [table.source.object for table in tables]
    exchange = shards[0].exchange
    num_rows = [shard.num_rows for shard in shards]
    table_names = [table.name for table in tables]
    feature_names = [feature.name for feature in features]

    route = route_ids(
        group_ids(features),
        exchange.num_ranks,
        num_rows,
        table_of_feature,
        combiners,
        prune_negative,
        invalid_ids,
    )
    messages, splits = exchange.alltoall(route.messages, route.splits, "exchange_ids")
    requests = read_requests(
        messages, splits, num_rows, table_of_feature, table_names, feature_names
    )
    packed, row_splits = pack_rows(_look_up_local_rows(tables, requests.batch), requests.counts)
    received, _ = exchange.alltoall(packed, row_splits, "exchange_rows")
    matrices = unpack_rows(received, route.counts, [table.dim for table in tables])
    return group_lookup(
        [_with_source(table, matrix) for table, matrix in zip(tables, matrices)],
        route.batch,
        table_of_feature,
        combiners,
        feature_names,
        concat=concat,
        prune_negative=True,  # the routed ids: -1 is left out, one past the end reads zeros
        invalid_ids="ignore",
    )


def _look_up_local_rows(tables, batch):
    """The rows that all ranks ask for, one [rows, dim] per table."""
    local = [
        _with_source(table, table.source.object.variable)._replace(max_norm=0.0) for table in tables
    ]
    return group_lookup(
        local,
        batch,
        list(range(len(tables))),
        ["sum"] * len(tables),
        [table.name for table in tables],
        concat=False,
        prune_negative=False,
        invalid_ids="raise",
    )


def _with_source(table, source):
    return table._replace(source=type(table.source)(source))
