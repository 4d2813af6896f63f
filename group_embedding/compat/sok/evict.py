"""`sparse_read_and_evict`: a table that keeps to a number of keys."""

from __future__ import annotations

import tensorflow as tf

from group_embedding.compat.sok.dynamic_variable import DynamicVariable
from group_embedding.compat.sok.lookup import all2all_dense_embedding
from group_embedding.compat.sok.sok_tables import name_of
from group_embedding.types import TensorLike
from group_embedding.variables import over_ranks, widened


def sparse_read_and_evict(
    var: DynamicVariable, indices: TensorLike, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Reads rows of keys, and forgets old keys where the table would exceed its `max_capacity`.

    As many keys of the table are forgotten as it would have too many once all of `indices` are
    trained: the keys that were trained or assigned longest ago, or, with `evict_strategy="kLfu"`,
    the keys that were trained least often, and none of `indices`. In a table over several ranks,
    whose capacity is that of each rank, each rank forgets keys of its own, and every rank must call
    it. A call that forgets keys reads all keys of the table; others do not.

    If `indices` alone are more than `max_capacity`, a table without `evict_strategy` takes all of
    them. A table with an `evict_strategy` takes as many as it may have, and counts the others in
    `budget_counts().without_place`.

    Args:
        var: a DynamicVariable of var_type 'hybrid' or None.
        indices: integers of any shape.
        name: of the operation.

    Returns:
        rows: a tensor of shape `indices.shape + [dim]`, with a gradient.
        keys: [n]: those forgotten on this rank.
        values: [n, dim]: the rows that they had.

    Raises:
        TypeError: another table.
        ValueError: a table of `evict_strategy="kCustomized"`, whose scores cannot be read.

    Example:

    >>> table = ge.sok.DynamicVariable(1, "0", max_capacity=2)
    >>> ge.sok.assign(table, [7, 8], [[1.], [2.]])
    >>> rows, keys, values = ge.sok.sparse_read_and_evict(table, [8, 9])
    >>> rows.numpy().tolist(), keys.numpy().tolist(), values.numpy().tolist()
    ([[2.0], [0.0]], [7], [[1.0]])
    """
    if not isinstance(var, DynamicVariable) or var.backend_type != "hybrid":
        raise TypeError(
            f"sparse_read_and_evict: expected a DynamicVariable of var_type 'hybrid', got {var!r}"
        )
    if var.config.evict_strategy == "kCustomized":
        raise ValueError(
            f"sparse_read_and_evict: table '{name_of(var)}': expected evict_strategy 'kLru' or "
            "'kLfu', got 'kCustomized'; ge.keyed_table(evict='score', max_keys=..., "
            "budget_of='rank', hand_out='rows') hands out the keys of the lowest scores by "
            "take_evicted"
        )
    with tf.name_scope(name or "sparse_read_and_evict"):
        indices = widened(tf.convert_to_tensor(indices), var.key_dtype)
        keys, values = _evict(var, indices)
        with tf.control_dependencies([keys, values]):
            indices = tf.identity(indices)
        return all2all_dense_embedding(var, indices), keys, values


def _evict(table, indices):
    with tf.device("/CPU:0"):
        coming = tf.unique(over_ranks.own_keys(table, tf.reshape(indices, [-1]))).y
        is_new = table.lookup_tier(coming) < 0
        num_new = tf.math.count_nonzero(is_new)
        excess = tf.cast(table.total_count(), tf.int64) + num_new - table.config.capacity
        return tf.cond(
            excess > 0, lambda: _forget_lowest(table, excess, coming), lambda: _nothing(table)
        )


def _forget_lowest(table, count, kept):
    found = table.export()
    may_go = tf.logical_not(_is_in(found.keys, kept))
    keys, values, versions, counts = (tf.boolean_mask(part, may_go) for part in found)
    lowest = tf.argsort(versions, stable=True)
    if table.config.evict_strategy == "kLfu":
        lowest = tf.gather(lowest, tf.argsort(tf.gather(counts, lowest), stable=True))
    lowest = lowest[:count]
    keys, values = tf.gather(keys, lowest), tf.gather(values, lowest)
    with tf.control_dependencies([table.erase(keys)]):
        return tf.identity(keys), tf.identity(values)


def _nothing(table):
    return tf.zeros([0], table.key_dtype), tf.zeros([0, table.shape[1]], table.dtype)


def _is_in(keys, some):
    """Returns, for each of `keys`, whether it is one of `some`, which are distinct; both in any
    order."""
    _, place = tf.unique(tf.concat([some, keys], axis=0))
    return place[tf.size(some) :] < tf.size(some)
