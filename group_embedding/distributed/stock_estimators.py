"""Estimators of TensorFlow on several ranks: they export whole models. TensorFlow 2.15 and earlier
have them."""

import functools

import tensorflow as tf

from group_embedding.distributed.exported import export_by_first_rank
from group_embedding.exchange import current


@functools.cache  # once
def let_estimators_export_whole():
    """From now on, where every rank of a job calls a method of an Estimator that exports, the first
    one writes one SavedModel, with the rows of all ranks. Stock would write one for each rank, with
    the rows of that rank, and ops that wait for the others."""
    if not hasattr(tf, "estimator"):
        return
    from tensorflow_estimator.python.estimator.estimator import Estimator

    Estimator._export_all_saved_models = _by_first_rank(Estimator._export_all_saved_models)


def _by_first_rank(stock):
    @functools.wraps(stock)
    def _export_all_saved_models(estimator, *args, **kwargs):
        def export():
            return tf.compat.as_str(stock(estimator, *args, **kwargs))

        if current().num_ranks == 1:  # as where the first rank exports by itself
            return stock(estimator, *args, **kwargs)
        return tf.compat.as_bytes(export_by_first_rank(current(), export))

    return _export_all_saved_models
