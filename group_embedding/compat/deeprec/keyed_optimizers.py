"""Optimizers of tf.compat.v1.train that update EmbeddingVariables without `wrap`, as in DeepRec."""

import functools

import tensorflow as tf

from group_embedding.optimizers import (
    V1_NAMES,
    WRAPPED,
    keyed_alone_class,
    stock_class,
    v1_ftrl,
)


def _group_ftrl(optimizer):
    """The rule of Ftrl whose l1 is that of the norm of a row."""
    return v1_ftrl(optimizer)._replace(rule="group_ftrl")


# Optimizers that have another rule for keyed tables in DeepRec.
_ROWS = {"FtrlOptimizer": _group_ftrl}


def trains_keyed_tables(stock):
    """A class like the optimizers' class `stock`, of tf.compat.v1.train, whose optimizers update
    EmbeddingVariables without `wrap`, and all other variables as stock does."""
    return keyed_alone_class(stock, stock, _ROWS.get(stock.__name__))


def train_keyed_tables_from_now_on():
    """From now on each optimizer of tf.compat.v1.train that is made, and that `wrap` takes, updates
    EmbeddingVariables without it, and all other variables as before."""
    for name in V1_NAMES:
        stock = getattr(tf.compat.v1.train, name)
        if not hasattr(stock.__init__, "_ge_trains_keyed"):
            stock.__init__ = _then_train_keyed_tables(stock, stock.__init__)


def _then_train_keyed_tables(stock, init):
    @functools.wraps(init)
    def __init__(optimizer, *args, **kwargs):  # noqa: N807
        init(optimizer, *args, **kwargs)
        if not isinstance(optimizer, WRAPPED) and stock_class(optimizer) is stock:
            row = _ROWS.get(stock.__name__)
            optimizer.__class__ = keyed_alone_class(type(optimizer), stock, row)

    __init__._ge_trains_keyed = True
    return __init__
