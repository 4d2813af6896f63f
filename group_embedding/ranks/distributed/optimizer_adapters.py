"""Optimizer adapters: one class to mix into each kind of optimizer of TensorFlow and Keras, which
averages gradients over ranks before they are applied."""

import contextlib

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from group_embedding.optimizers.bases import KERAS
from group_embedding.ranks.distributed.clip_norms import any_spread, clip_by_norms
from group_embedding.ranks.distributed.gradients import average_gradients
from group_embedding.ranks.distributed.initial_values import (
    broadcast_initial_values,
    broadcast_variables,
)
from group_embedding.ranks.distributed.loss_scale import overflow_of_ranks
from group_embedding.ranks.distributed.replica_optimizer import OverReplicas
from group_embedding.ranks.distributed.slots import MarkedSlots
from group_embedding.ranks.sharding.sharded_table import exchange_of


class Distributed:
    """Base of the optimizer adapters."""

    _ge_exchange = None
    _ge_reduced = False  # compute_gradients of this optimizer has been used

    def _ge_overflow(self, grads):
        return overflow_of_ranks(self._ge_exchange, grads)

    def _ge_average(self, grads_and_vars):
        gradients = [gradient for gradient, _ in grads_and_vars]
        variables = [variable for _, variable in grads_and_vars]
        with tf.name_scope("DistributedOptimizer"):
            return list(zip(average_gradients(self._ge_exchange, gradients, variables), variables))

    @contextlib.contextmanager
    def _ge_as_in_one_process(self, grads_and_vars):
        """Gradients of the whole batch; where a rank has some rows of a table alone, their norms
        are limited here, and stock inside does not limit what it takes for them."""
        pairs = self._ge_average(grads_and_vars)
        norms = {name: getattr(self, name) for name in ("clipnorm", "global_clipnorm")}
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        if not any(norms.values()) or not any_spread(variables):
            yield pairs
            return
        with tf.name_scope("DistributedOptimizer"):
            clipped = clip_by_norms(self._ge_exchange, gradients, variables, **norms)
        for name in norms:
            setattr(self, name, None)
        try:
            yield list(zip(clipped, variables))
        finally:
            for name, norm in norms.items():
                setattr(self, name, norm)


class _DistributedV1(MarkedSlots, Distributed):
    """The adapter of tf.compat.v1.train optimizers. Gradients are averaged when `compute_gradients`
    returns them, so that later steps, such as clipping, see gradients of the whole batch. Gradients
    that were computed otherwise are averaged when they are applied."""

    def compute_gradients(self, *args, **kwargs):
        self._ge_reduced = True
        return self._ge_average(super().compute_gradients(*args, **kwargs))

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        grads_and_vars = list(grads_and_vars)
        if not self._ge_reduced:
            grads_and_vars = self._ge_average(grads_and_vars)
        if not tf.executing_eagerly():
            broadcast_initial_values(self._ge_exchange, tf.compat.v1.global_variables())
        return super().apply_gradients(grads_and_vars, *args, **kwargs)


class _DistributedKeras(Distributed):
    """The adapter of Keras 2 optimizers."""

    def build(self, var_list):
        built = getattr(self, "_built", False)
        super().build(var_list)
        if not built:
            _broadcast_outside_functions(var_list)

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        with self._ge_as_in_one_process(list(grads_and_vars)) as pairs:
            return super().apply_gradients(pairs, *args, **kwargs)


class _DistributedKerasLegacy(MarkedSlots, Distributed):
    """The adapter of tf.keras.optimizers.legacy."""

    def _create_all_weights(self, var_list):
        super()._create_all_weights(var_list)
        if not self._ge_reduced:
            self._ge_reduced = True
            _broadcast_outside_functions(var_list)

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        with self._ge_as_in_one_process(list(grads_and_vars)) as pairs:
            return super().apply_gradients(pairs, *args, **kwargs)


class _DistributedKeras3(Distributed):
    """The adapter of Keras 3 optimizers, whose `apply_gradients` calls `apply`."""

    def build(self, variables):
        with tf.init_scope():  # as Keras 2 does: a first step may be one of a function
            super().build(variables)
        _broadcast_outside_functions(variables)

    def apply(self, grads, trainable_variables=None):
        if control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
            raise ValueError(
                "DistributedOptimizer: XLA, which Keras 3 takes for models on GPUs, cannot compile "
                "the exchange of gradients; compile the model with jit_compile=False"
            )
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables
        with self._ge_as_in_one_process(list(zip(grads, variables))) as pairs:
            return super().apply([gradient for gradient, _ in pairs], trainable_variables)


class _OverReplicasKeras(OverReplicas, _DistributedKeras):
    """The adapter of Keras 2 optimizers over the replicas of a strategy."""

    def aggregate_gradients(self, grads_and_vars):
        return self._ge_add_up(super().aggregate_gradients, grads_and_vars)


class _OverReplicasKeras3(OverReplicas, _DistributedKeras3):
    """The adapter of Keras 3 optimizers over the replicas of a strategy."""

    def apply_gradients(self, grads_and_vars, experimental_aggregate_gradients=True):
        """Applies gradients. As in Keras 2, experimental_aggregate_gradients=False keeps the
        replicas' gradients apart."""
        pairs = list(grads_and_vars)
        if not experimental_aggregate_gradients and self._ge_exchange.num_ranks > 1:
            for _, variable in pairs:
                if exchange_of(variable) is None:
                    raise ValueError(
                        "apply_gradients: expected tables alone, where "
                        f"experimental_aggregate_gradients=False, got '{variable.name}'"
                    )
        return super().apply_gradients(pairs)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return self._ge_add_up(super()._all_reduce_sum_gradients, grads_and_vars)


def _broadcast_outside_functions(variables):
    with tf.init_scope():
        if tf.executing_eagerly():
            broadcast_variables(variables)


def adapter_of(optimizer):
    """The adapter class for an optimizer of a process; None if `optimizer` is no optimizer."""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _DistributedV1
    if not isinstance(optimizer, KERAS.Optimizer) and not _is_legacy(optimizer):
        return None
    if _is_legacy(optimizer):
        return _DistributedKerasLegacy
    return _DistributedKeras3 if hasattr(optimizer, "apply") else _DistributedKeras


def adapter_of_replicas(optimizer):
    """The adapter class for an optimizer over the replicas of a strategy.

    Raises:
        TypeError: an optimizer of TensorFlow 1, or a legacy one.
    """
    adapters = {_DistributedKeras: _OverReplicasKeras, _DistributedKeras3: _OverReplicasKeras3}
    adapter = adapters.get(adapter_of(optimizer))
    if adapter is None:
        raise TypeError(
            "DistributedOptimizer: expected an optimizer of tf.keras.optimizers, and no legacy "
            f"one, over the replicas of a strategy, got {type(optimizer).__name__}"
        )
    return adapter


def _is_legacy(optimizer):
    return hasattr(optimizer, "_create_all_weights") and hasattr(optimizer, "apply_gradients")
