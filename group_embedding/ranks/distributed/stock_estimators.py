"""Estimators of TensorFlow on several ranks: they export whole models. TensorFlow 2.15 and earlier
have them."""

import functools

import tensorflow as tf

from group_embedding.ranks.distributed.exported import export_by_first_rank
from group_embedding.ranks.exchange.active import current
from group_embedding.ranks.sharding.sharded_table import exchange_of


@functools.cache  # once
def let_estimators_export_whole():
    """From now on, where every rank of a job calls a method of an Estimator that exports, the first
    one writes one SavedModel, with the rows of all ranks. Stock would write one for each rank, with
    the rows of that rank, and ops that wait for the others.

    An Estimator whose graphs have had no table that is spread over ranks exports as in stock
    TensorFlow: one rank may have it alone, and call it alone."""
    if not hasattr(tf, "estimator"):
        return
    from tensorflow_estimator.python.estimator.estimator import Estimator

    Estimator._call_model_fn = _noting_tables(Estimator._call_model_fn)
    Estimator._export_all_saved_models = _by_first_rank(Estimator._export_all_saved_models)


def _noting_tables(stock):
    @functools.wraps(stock)
    def _call_model_fn(estimator, *args, **kwargs):
        spec = stock(estimator, *args, **kwargs)
        has_tables = any(map(exchange_of, tf.compat.v1.global_variables()))
        estimator._has_spread_tables = has_tables or getattr(estimator, "_has_spread_tables", False)
        return spec

    return _call_model_fn


def _by_first_rank(stock):
    @functools.wraps(stock)
    def _export_all_saved_models(estimator, *args, **kwargs):
        def export():
            return tf.compat.as_str(stock(estimator, *args, **kwargs))

        # One rank: as where the first exports by itself. Graphs that were not made yet may have
        # tables.
        is_whole = not getattr(estimator, "_has_spread_tables", True)
        if current().num_ranks == 1 or is_whole:
            return stock(estimator, *args, **kwargs)
        return tf.compat.as_bytes(export_by_first_rank(current(), export))

    return _export_all_saved_models
