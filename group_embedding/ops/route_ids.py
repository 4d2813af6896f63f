"""The ops that say which rank is asked for which rows, and their gradient."""

from typing import NamedTuple

import tensorflow as tf

from group_embedding.ops._library import library
from group_embedding.ops.group_ids import Batch


class Route(NamedTuple):
    """What a rank asks of each rank, and its batch in terms of the answers."""

    messages: tf.Tensor  # int64 [words], those for rank 0 first
    splits: tf.Tensor  # int32 [ranks]: words for each rank
    counts: tf.Tensor  # int64 [ranks, tables]: rows asked of each rank
    batch: Batch


class Requests(NamedTuple):
    """What all ranks ask of this one: a lookup of one feature per table, one id per sample."""

    batch: Batch
    counts: tf.Tensor  # int64 [ranks, tables]: rows asked by each rank


def route_ids(batch, num_ranks, num_rows, table_of_feature, combiners, prune_negative, invalid_ids):
    """Finds the unique rows of `batch` and their owners.

    Args:
        num_rows: of each whole table.
        others: as of `ops.group_lookup.group_lookup`.
    """
    with tf.device("/CPU:0"):
        messages, splits, counts, routed = library().route_ids(
            batch=batch.buffer,
            sizes=batch.sizes,
            num_ranks=num_ranks,
            num_rows=num_rows,
            table_of_feature=table_of_feature,
            combiners=combiners,
            weighted=batch.weighted,
            prune_negative=prune_negative,
            invalid_ids=invalid_ids,
        )
    return Route(messages, splits, counts, batch._replace(buffer=routed))


def read_requests(messages, splits, num_rows, table_of_feature, table_names, feature_names):
    """Reads the messages received from all ranks; fails on every rank when one reports a bad id."""
    with tf.device("/CPU:0"):
        buffer, sizes, counts = library().read_requests(
            messages=messages,
            splits=splits,
            num_rows=num_rows,
            table_of_feature=table_of_feature,
            table_names=table_names,
            feature_names=feature_names,
        )
    return Requests(Batch(buffer, sizes, weighted=False), counts)


@tf.RegisterGradient("RouteIds")
def _route_ids_grad(op, _messages, _splits, _counts, weight_grad):
    """The weights stay where they are, and so does their gradient."""
    del op
    return [weight_grad, None]


tf.no_gradient("ReadRequests")
