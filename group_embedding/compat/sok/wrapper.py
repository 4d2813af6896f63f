"""Optimizers that train tables: `OptimizerWrapper`, `SGD`, `Adam`, and `OptimizerScope`."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from group_embedding.compat.sok.second_optimizer import second_optimizer
from group_embedding.compat.sok.sok_tables import is_table, name_of
from group_embedding.lookups import tf_variable
from group_embedding.optimizers import (
    KERAS,
    WRAPPED,
    LazyAdam,
    can_wrap,
    changed_method,
    inside,
    is_loss_scale,
    wrap,
)
from group_embedding.ranks.distributed import DistributedOptimizer
from group_embedding.types import Hyperparameter, Optimizer
from group_embedding.variables import EmbeddingVariable


def OptimizerWrapper(optimizer: Optimizer) -> Optimizer:  # noqa: N802
    """An optimizer that trains the tables of SOK.

    Tables are updated natively, each row on the rank that owns it. Other variables are trained as
    well; over ranks, their gradients are averaged, which leaves those that Horovod reduced before
    as they are.

    Args:
        optimizer: one that `ge.optimizers.wrap` takes; for tables of `Variable` alone any of
            TensorFlow or Keras.

    Returns:
        Another optimizer of the same class, with the same settings, and with the same learning rate
        also when that is set later. It has slots and counts steps of its own, so that `optimizer`
        can train other variables beside it, as SOK's scripts have it. Where no native rule is
        known, `optimizer` itself.

    Raises:
        TypeError: it is no optimizer, or a LossScaleOptimizer, which goes around what this returns.

    Example:

    >>> table = ge.sok.Variable([[1.], [2.]])
    >>> optimizer = ge.sok.OptimizerWrapper(tf.keras.optimizers.SGD(0.5))
    >>> with tf.GradientTape() as tape:
    ...     loss = tf.reduce_sum(ge.sok.all2all_dense_embedding(table, [1]))
    >>> _ = optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    >>> table.numpy().tolist()
    [[1.0], [1.5]]
    """
    if is_loss_scale(optimizer):
        raise TypeError(
            "OptimizerWrapper: expected the optimizer inside, got a LossScaleOptimizer; it goes "
            "around: LossScaleOptimizer(sok.OptimizerWrapper(optimizer))"
        )
    if can_wrap(optimizer):
        optimizer = wrap(second_optimizer(optimizer))
    else:
        _refuse_keys(optimizer)
    return DistributedOptimizer(optimizer)


def SGD(lr: Hyperparameter = 0.01) -> Optimizer:  # noqa: N802
    """Stochastic gradient descent for tables and other variables.

    Args:
        lr: the learning rate.

    Returns:
        As `OptimizerWrapper`: a Keras optimizer, or in a graph of TensorFlow 1 one of those.

    Example:

    >>> optimizer = ge.sok.SGD(lr=0.1)
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        return OptimizerWrapper(KERAS.SGD(lr))
    return OptimizerWrapper(tf.compat.v1.train.GradientDescentOptimizer(lr))


def Adam(  # noqa: N802
    learning_rate: Hyperparameter = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    amsgrad: bool = False,
    name: str = "Adam",
    **kwargs: Any,
) -> Optimizer:
    """Adam for tables and other variables; of a table, it moves the rows that were looked up.

    Args:
        learning_rate, beta_1, beta_2, epsilon, amsgrad, name: see `tf.keras.optimizers.Adam`.
        **kwargs: of the Keras optimizer.

    Returns:
        As `OptimizerWrapper`: a Keras optimizer, or in a graph of TensorFlow 1 one of those.

    Raises:
        TypeError: `amsgrad` or `kwargs` in a graph of TensorFlow 1.

    Example:

    >>> optimizer = ge.sok.optimizers.Adam(learning_rate=0.1)
    """
    if amsgrad:
        kwargs["amsgrad"] = True
    optimizer = LazyAdam(learning_rate, beta_1, beta_2, epsilon, name, **kwargs)
    return DistributedOptimizer(optimizer)


@contextlib.contextmanager
def OptimizerScope(trainable_variables: Any) -> Iterator[None]:  # noqa: N802
    """Inside, stock optimizers train embedding variables: those that are applied are wrapped.

    An optimizer stays wrapped after the scope, and is the same object.

    Args:
        trainable_variables: embedding variables, as `split_embedding_variable_from_others` finds
            them.

    Raises:
        TypeError: another variable among them.

    Example:

    >>> layer = ge.sok.All2AllDenseEmbedding(100, 4, slot_num=1, nnz_per_slot=1)
    >>> tables, _ = ge.sok.split_embedding_variable_from_others(layer.trainable_variables)
    >>> optimizer = tf.keras.optimizers.SGD(0.1)
    >>> with tf.GradientTape() as tape:
    ...     loss = tf.reduce_sum(layer(tf.constant([[[7]]], tf.int64)))
    >>> with ge.sok.OptimizerScope(tables):
    ...     _ = optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
    """
    others = [variable for variable in trainable_variables if not is_table(variable)]
    if others:
        raise TypeError(f"OptimizerScope: expected embedding variables alone, got {others[0]!r}")
    with _wrapping:
        yield


class _Wrapping:
    """Inside, in this thread, optimizers are wrapped as they are applied. The replicas of a
    strategy are threads, which enter and leave in any order."""

    def __init__(self):
        self._lock = threading.Lock()
        self._num_open = 0
        self._changed = None
        self._of_thread = threading.local()

    @property
    def is_on(self):
        return getattr(self._of_thread, "num_open", 0) > 0

    def __enter__(self):
        self._count(1)
        with self._lock:
            if self._num_open == 0:
                self._changed = changed_method("apply_gradients", _first_wrapped)
                self._changed.__enter__()
            self._num_open += 1

    def __exit__(self, *_):
        self._count(-1)
        with self._lock:
            self._num_open -= 1
            if self._num_open == 0:
                self._changed.__exit__(None, None, None)

    def _count(self, change):
        self._of_thread.num_open = getattr(self._of_thread, "num_open", 0) + change


_wrapping = _Wrapping()


def _first_wrapped(apply_gradients):
    @functools.wraps(apply_gradients)
    def wrapped(optimizer, *args, **kwargs):
        if _wrapping.is_on and is_loss_scale(optimizer) and can_wrap(inside(optimizer)):
            DistributedOptimizer(wrap(inside(optimizer)))
        if not _wrapping.is_on or not can_wrap(optimizer):
            return apply_gradients(optimizer, *args, **kwargs)
        return DistributedOptimizer(wrap(optimizer)).apply_gradients(*args, **kwargs)

    return wrapped


class _OfRows:
    """Mixed into an optimizer whose rule is not known here: its own updates are of rows."""

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        grads_and_vars = list(grads_and_vars)
        for _, variable in grads_and_vars:
            if isinstance(tf_variable(variable), EmbeddingVariable):
                raise TypeError(
                    f"table '{name_of(variable)}': expected an optimizer that ge.optimizers.wrap "
                    f"takes, as its rows are found by key, got {type(self).__name__}"
                )
        return super().apply_gradients(grads_and_vars, *args, **kwargs)


def _refuse_keys(optimizer):
    stock = type(optimizer)
    is_optimizer = hasattr(optimizer, "apply_gradients")
    if is_optimizer and not isinstance(optimizer, (_OfRows, *WRAPPED)):
        namespace = {"__module__": stock.__module__, "__doc__": stock.__doc__}
        optimizer.__class__ = type(stock.__name__, (_OfRows, stock), namespace)
