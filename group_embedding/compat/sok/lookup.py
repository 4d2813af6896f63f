"""SOK's lookups: the group lookup, with gradients that are sums over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.arguments import per_lookup
from group_embedding.compat.sok.low_frequency import filtered
from group_embedding.compat.sok.rank_gradients import summed_over_ranks, weights_of_this_rank
from group_embedding.lookups import (
    group_embedding_lookup,
    group_embedding_lookup_signed,
    tf_variable,
)
from group_embedding.types import Combiner, SparseLike, Table, TensorLike
from group_embedding.variables import EmbeddingVariable, widened


def lookup_sparse(
    params: Table | Sequence[Table],
    sp_ids: SparseLike | Sequence[SparseLike],
    sp_weights: SparseLike | Sequence[SparseLike | None] | None = None,
    combiners: Combiner | Sequence[Combiner] | None = None,
    use_low_frequency_filter: bool = False,
) -> Any:
    """Looks up and combines sparse features, all in one op and one exchange.

    As `ge.group_embedding_lookup_sparse`, but for two things: a table's gradient is the sum over
    the ranks, and weights of any sign count, as in `tf.nn.embedding_lookup_sparse`: 'mean' divides
    by the sum of a sample's weights, and gives zeros where that is 0. Every rank must call it, with
    its own part of the batch.

    Args:
        params: a table, or a list of tables: of `Variable`, `DynamicVariable` or TensorFlow. One
            may come several times.
        sp_ids: a SparseTensor or RaggedTensor of integers, or a list with one per table.
        sp_weights: None, or weights of the form of `sp_ids`; in a list some may be None.
        combiners: 'sum', 'mean' or 'sqrtn', for all or a list with one each. None: 'mean'.
        use_low_frequency_filter: a key without a row, in a DynamicVariable of a `filter_ratio`
            below 1, is looked up and trained with that probability. Else it reads zeros, gets no
            row, and counts in the divisor of 'mean' and 'sqrtn'.

    Returns:
        A tensor [samples, dim], or where `params` is a list, a list of them. A sample without ids
        is zeros.

    Raises:
        TypeError, ValueError, tf.errors.InvalidArgumentError: as
            `ge.group_embedding_lookup_sparse`.

    Example:

    >>> table = ge.sok.Variable([[1., 2.], [3., 4.]])
    >>> ids = tf.ragged.constant([[0, 1], [], [1]], dtype=tf.int64)
    >>> ge.sok.lookup_sparse([table], [ids], combiners=["mean"])[0].numpy().tolist()
    [[2.0, 3.0], [0.0, 0.0], [3.0, 4.0]]
    """
    combiners = "mean" if combiners is None else combiners
    if isinstance(params, (list, tuple)):
        return _look_up(params, sp_ids, sp_weights, combiners, use_low_frequency_filter)
    sp_weights = None if sp_weights is None else [sp_weights]
    return _look_up([params], [sp_ids], sp_weights, combiners, use_low_frequency_filter)[0]


def all2all_dense_embedding(param: Table, indices: TensorLike) -> tf.Tensor:
    """Looks up dense ids: each by itself.

    Gradients are as of `lookup_sparse`, and every rank must call it.

    Args:
        param: a table, as of `lookup_sparse`.
        indices: integers of any shape.

    Returns:
        A tensor of shape `indices.shape + [dim]`.

    Raises:
        TypeError, ValueError, tf.errors.InvalidArgumentError: as `ge.group_embedding_lookup`.

    Example:

    >>> table = ge.sok.Variable([[1., 2.], [3., 4.]])
    >>> ge.sok.all2all_dense_embedding(table, [[1], [0]]).numpy().tolist()
    [[[3.0, 4.0]], [[1.0, 2.0]]]
    """
    indices = _as_keys(tf.convert_to_tensor(indices), param)
    (rows,) = group_embedding_lookup([param], [indices])
    return summed_over_ranks(rows, param)


def _look_up(params, sp_ids, sp_weights, combiners, use_low_frequency_filter):
    """`lookup_sparse` of lists."""
    sp_ids = [_as_keys(ids, param) for ids, param in zip(sp_ids, params)]
    divisors = [None] * len(params)
    if use_low_frequency_filter:
        sp_ids, sp_weights, combiners, divisors = _filtered(params, sp_ids, sp_weights, combiners)
    if sp_weights is not None:
        sp_weights = [
            weights_of_this_rank(weights, param) for weights, param in zip(sp_weights, params)
        ]
    results = group_embedding_lookup_signed(params, sp_ids, combiners, sp_weights)
    results = [summed_over_ranks(result, param) for result, param in zip(results, params)]
    return [_divided(result, by) for result, by in zip(results, divisors)]


def _as_keys(ids, param):
    table = tf_variable(param)
    return widened(ids, table.key_dtype) if isinstance(table, EmbeddingVariable) else ids


def _filtered(params, sp_ids, sp_weights, combiners):
    count = len(params)
    weights = [None] * count if sp_weights is None else sp_weights
    given = zip(params, sp_ids, weights, per_lookup("combiners", combiners, count))
    ids, weights, combiners, divisors = zip(*(filtered(*of_lookup) for of_lookup in given))
    return list(ids), None if sp_weights is None else list(weights), list(combiners), divisors


def _divided(result, divisors):
    if divisors is None:
        return result
    return tf.math.divide_no_nan(result, tf.cast(divisors, result.dtype)[:, None])
