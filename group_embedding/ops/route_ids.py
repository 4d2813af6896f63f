"""The ops that say which rank is asked for which rows, and their gradient."""

from typing import Any, NamedTuple

import tensorflow as tf

from group_embedding.ops._library import library
from group_embedding.ops.group_ids import Batch

tf.no_gradient("GroupEmbedding>ReadRequests")
tf.no_gradient("GroupEmbedding>KeyOwners")


class RoutedTable(NamedTuple):
    """A table as routing sees it."""

    name: str
    num_rows: int  # of the whole table; -1: it has keys
    placement: Any  # placement.Placement
    sums: bool  # whether owners send one sum of a sample's rows, instead of the rows


class Route(NamedTuple):
    """A rank's requests to each rank, and its batch with ids that refer to the received rows."""

    messages: tf.Tensor  # int64 [words], those for rank 0 first
    splits: tf.Tensor  # int32 [ranks]: words for each rank
    counts: tf.Tensor  # int64 [ranks, tables]: rows asked of each rank
    batch: Batch


class Requests(NamedTuple):
    """The requests of all ranks to this one: for each lookup a batch with one feature per table and
    one id per sample; where owners send sums, the ids of a sum, and weights."""

    batches: list  # of Batch; where owners send sums, see `of_sums`
    times: list  # int64 [ids] per group: how often each came; [0] for a group without keys
    counts: tf.Tensor  # int64 [ranks, tables]: rows asked by each rank


def route_ids(group, batch, num_ranks, tables, description, of_host=(), within_host=None):
    """Finds the unique rows of a batch and their owners, or proxies.

    Args:
        group: the `ops.lookup_group.LookupGroup` of the batch.
        tables: a RoutedTable for each table of the group.
        description: a text that lists the lookup's tables and features, the same on all ranks.
        of_host: empty, or what `read_requests_of_host` returned beside the batch: the occurrences
            of its ids, and the fault.
        within_host: None, or the ExchangeWithinHost whose ranks are asked instead of the owners.
    """
    with tf.device("/CPU:0"):
        messages, splits, counts, routed, sizes = library().route_ids(
            batch=batch.buffer,
            sizes=batch.sizes,
            of_host=of_host,
            proxies=within_host.proxies if within_host else [],
            ranks_of_host=len(within_host.ranks) if within_host else 0,
            num_ranks=num_ranks,
            num_rows=[table.num_rows for table in tables],
            placements=[table.placement.kind for table in tables],
            placement_ranks=[table.placement.rank for table in tables],
            table_of_feature=group.table_of_feature,
            combiners=group.combiners,
            description=description,
            weighted=batch.weighted,
            prune_negative=group.prune_negative,
            invalid_ids=group.invalid_ids,
            tables_with_sums=_with_sums(tables),
        )
    if not _with_sums(tables):
        sizes = batch.sizes
    return Route(messages, splits, counts, batch._replace(buffer=routed, sizes=sizes))


def read_requests(group, messages, splits, tables, lookup_of_table, description):
    """Reads the messages received from all ranks; fails on every rank when one reports a bad id, or
    has another description.

    Args:
        group, tables, description: as for `route_ids`.
        messages, splits: what all ranks sent to this one.
        lookup_of_table: for each table, the index of the lookup that reads its requested rows;
            tables with sums have lookups of their own.
    """
    return _read(group, messages, splits, tables, lookup_of_table, description)[0]


def read_requests_of_host(group, messages, splits, tables, description, ranks):
    """Reads the messages of the ranks of a host to this one, their proxy; arguments as of
    `read_requests`.

    Args:
        ranks: the numbers of these ranks in the job.

    Returns:
        Requests with one batch, which `route_ids` takes, and the fault of a rank, int64 [5] or [0].
    """
    one_batch = [0] * len(tables)
    return _read(group, messages, splits, tables, one_batch, description, ranks)


def _read(group, messages, splits, tables, lookup_of_table, description, ranks_of_host=()):
    with tf.device("/CPU:0"):
        buffers, sizes, times, counts, fault = library().read_requests(
            messages=messages,
            splits=splits,
            num_groups=max(lookup_of_table) + 1,
            group_of_table=lookup_of_table,
            num_rows=[table.num_rows for table in tables],
            table_of_feature=group.table_of_feature,
            table_names=[table.name for table in tables],
            feature_names=group.names,
            description=description,
            tables_with_sums=_with_sums(tables),
            ranks_of_host=ranks_of_host,
        )
    batches = [Batch(b, s, weighted=False) for b, s in zip(buffers, sizes)]
    return Requests(batches, times, counts), fault


def of_sums(batch):
    """The requests of a lookup of tables with sums, whose weights are the factors of rows."""
    return batch._replace(weighted=True, constant_weights=True)


def _with_sums(tables):
    return [t for t, table in enumerate(tables) if table.sums]


def key_owners(keys, num_ranks):
    """int64 keys -> the ranks that store them."""
    with tf.device("/CPU:0"):
        return library().key_owners(keys=keys, num_ranks=num_ranks)


@tf.RegisterGradient("GroupEmbedding>RouteIds")
def _route_ids_grad(op, _messages, _splits, _counts, weight_grad, _sizes):
    """The weights stay where they are, and so does their gradient."""
    if op.get_attr("tables_with_sums"):
        first = op.get_attr("tables_with_sums")[0]
        described = op.get_attr("description").decode().split("\n")[first]
        raise ValueError(
            "sp_weights: expected no gradient of weights in a lookup with a table whose owners "
            f"send sums, as these have the rows; got one beside {described}; stop the gradient "
            "(tf.stop_gradient), or leave ':sums' out of the placement"
        )
    return [weight_grad, *[None] * (len(op.inputs) - 1)]
