"""`DistributedOptimizer`: an optimizer of one process becomes one of all ranks.

An optimizer stays the same object and is given another class, a subclass of its own, which averages
gradients before they are applied. There is one kind of subclass for each way in which TensorFlow
and Keras apply gradients.
"""

import contextlib
import functools

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from group_embedding.distributed.clip_norms import any_spread, clip_by_norms
from group_embedding.distributed.gradients import average_gradients
from group_embedding.distributed.initial_values import (
    broadcast_initial_values,
    broadcast_variables,
)
from group_embedding.distributed.replicas import OverReplicas
from group_embedding.exchange import (
    assign_rows,
    current,
    exchange_of,
    gather_rows,
    is_over_replicas,
    mark_shard,
    sharded_table,
)
from group_embedding.optimizers.bases import changed_method


def DistributedOptimizer(optimizer):  # noqa: N802
    """Makes `optimizer` train one model on all ranks.

    Gradients are those of the mean of the ranks' losses. The exchange makes those of sharded tables
    and EmbeddingVariables so, on the owner of each row; all others are averaged here. With a loss
    that is a mean over the batch, N ranks with batches of B/N take the steps of one process with a
    batch of B; the learning rate is not scaled. When ranks have batches of different sizes, each
    rank counts alike. Around a wrapped optimizer (`ge.optimizers.wrap`), owners update tables with
    the same one op as one process does.

    All ranks start from the dense variables of rank 0. Every rank must take as many steps. A Keras
    optimizer's `clipnorm` and `global_clipnorm` limit the norms of the rows of all ranks; what is
    done to gradients by hand, such as `tf.clip_by_global_norm`, sees of a table this rank's alone.

    Where the ranks are the replicas of a strategy (`ge.sok.Init` in its scope), its sums of the
    dense gradients take the place of means, and the optimizer must be of `tf.keras.optimizers`.

    Args:
        optimizer: a `tf.compat.v1.train.Optimizer` or a Keras optimizer (also a legacy one, and one
            of Keras 3). It is changed in place.

    Returns:
        `optimizer`; in one process by itself, as it was.

    Raises:
        TypeError: it is none of these.
        ValueError: when Keras 3 has XLA compile the step, as it does by itself with a model on GPUs
            that has no layer of this library: `compile(jit_compile=False)` says that it shall not.

    Example:

    >>> optimizer = ge.DistributedOptimizer(tf.keras.optimizers.Adagrad(0.1))
    """
    way = _way_of(optimizer)
    if way is None:
        raise TypeError(
            "DistributedOptimizer: expected a tf.compat.v1.train.Optimizer or a Keras optimizer, "
            f"got {type(optimizer).__name__}"
        )
    exchange = current()
    over_replicas = is_over_replicas(exchange)
    way = _way_of_replicas(optimizer) if over_replicas else way
    if (exchange.num_ranks > 1 or over_replicas) and not isinstance(optimizer, _Distributed):
        optimizer.__class__ = _distributed_class(way, type(optimizer))
        optimizer._ge_exchange = exchange
    return optimizer


def distribute_new_optimizers():
    """Inside, in any thread, each optimizer that is made becomes a DistributedOptimizer."""
    if current().num_ranks == 1:
        return contextlib.nullcontext()
    return changed_method("__init__", _then_distribute)


def _then_distribute(init):
    @functools.wraps(init)
    def __init__(optimizer, *args, **kwargs):  # noqa: N807
        init(optimizer, *args, **kwargs)
        DistributedOptimizer(optimizer)

    return __init__


class _Distributed:
    """What the subclasses share."""

    _ge_exchange = None
    _ge_reduced = False  # compute_gradients of this optimizer has been used

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

    def _ge_mark_slot(self, slot, variable):
        """The slot of a sharded table is sharded as the table is."""
        shard = sharded_table(variable)
        raw = slot if isinstance(slot, tf.Variable) else getattr(slot, "value", None)
        if shard is None or not isinstance(raw, tf.Variable):
            return slot
        if raw.shape.rank == 2 and raw.shape[0] == shard.variable.shape[0]:
            shape = (shard.num_rows, raw.shape[1])
            mark_shard(raw, shape, shard.exchange, shard.placement)
        return slot


class _DistributedV1(_Distributed):
    """Of tf.compat.v1.train. Gradients are averaged as they are computed, so that what is done to
    them next, such as clipping, is done to those of the whole batch; or as they are applied, when
    they were computed by other means."""

    def compute_gradients(self, *args, **kwargs):
        self._ge_reduced = True
        return self._ge_average(super().compute_gradients(*args, **kwargs))

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        grads_and_vars = list(grads_and_vars)
        if not self._ge_reduced:
            grads_and_vars = self._ge_average(grads_and_vars)
        if not tf.executing_eagerly():
            broadcast_initial_values(self._ge_exchange, tf.compat.v1.global_variables())
        applied = super().apply_gradients(grads_and_vars, *args, **kwargs)
        for _, variable in grads_and_vars:
            for name in self.get_slot_names():
                slot = self.get_slot(variable, name)
                if slot is not None:
                    self._ge_mark_slot(slot, variable)
        return applied


class _SavedWhole:
    """Of optimizers that Keras saves with a model: the slots of tables as one process has them.
    Every rank must save."""

    def save_own_variables(self, store):
        for i, variable in enumerate(self.variables):
            store[str(i)] = gather_rows(variable).numpy()

    def load_own_variables(self, store):
        if len(store.keys()) != len(self.variables):
            super().load_own_variables(store)  # which says so
            return
        for i, variable in enumerate(self.variables):
            assign_rows(variable, store[str(i)][...])


class _DistributedKeras(_SavedWhole, _Distributed):
    """Of Keras 2."""

    def build(self, var_list):
        built = getattr(self, "_built", False)
        super().build(var_list)
        if not built:
            _broadcast_outside_functions(var_list)

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        with self._ge_as_in_one_process(list(grads_and_vars)) as pairs:
            return super().apply_gradients(pairs, *args, **kwargs)

    def add_variable_from_reference(self, model_variable, *args, **kwargs):
        slot = super().add_variable_from_reference(model_variable, *args, **kwargs)
        return self._ge_mark_slot(slot, model_variable)


class _DistributedKerasLegacy(_Distributed):
    """Of tf.keras.optimizers.legacy."""

    def _create_all_weights(self, var_list):
        super()._create_all_weights(var_list)
        if not self._ge_reduced:
            self._ge_reduced = True
            _broadcast_outside_functions(var_list)

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        with self._ge_as_in_one_process(list(grads_and_vars)) as pairs:
            return super().apply_gradients(pairs, *args, **kwargs)

    def add_slot(self, var, *args, **kwargs):
        return self._ge_mark_slot(super().add_slot(var, *args, **kwargs), var)


class _DistributedKeras3(_SavedWhole, _Distributed):
    """Of Keras 3, where `apply_gradients` calls `apply`."""

    def build(self, variables):
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

    def add_variable_from_reference(self, reference_variable, *args, **kwargs):
        slot = super().add_variable_from_reference(reference_variable, *args, **kwargs)
        return self._ge_mark_slot(slot, reference_variable)


class _OverReplicasKeras(OverReplicas, _DistributedKeras):
    """Of Keras 2."""

    def aggregate_gradients(self, grads_and_vars):
        return self._ge_add_up(super().aggregate_gradients, grads_and_vars)


class _OverReplicasKeras3(OverReplicas, _DistributedKeras3):
    """Of Keras 3."""

    def build(self, variables):
        with tf.init_scope():  # as Keras 2 does: a first step may be one of a function
            super().build(variables)

    def apply_gradients(self, grads_and_vars, experimental_aggregate_gradients=True):
        """As in Keras 2, where False says that the gradients of replicas stay apart."""
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


def _way_of_replicas(optimizer):
    ways = {_DistributedKeras: _OverReplicasKeras, _DistributedKeras3: _OverReplicasKeras3}
    way = ways.get(_way_of(optimizer))
    if way is None:
        raise TypeError(
            "DistributedOptimizer: expected an optimizer of tf.keras.optimizers, and no legacy "
            f"one, over the replicas of a strategy, got {type(optimizer).__name__}"
        )
    return way


def _way_of(optimizer):
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _DistributedV1
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer) and not _is_legacy(optimizer):
        return None
    if _is_legacy(optimizer):
        return _DistributedKerasLegacy
    return _DistributedKeras3 if hasattr(optimizer, "apply") else _DistributedKeras


def _is_legacy(optimizer):
    return hasattr(optimizer, "_create_all_weights") and hasattr(optimizer, "apply_gradients")


@functools.cache
def _distributed_class(way, stock):
    # Under the stock name, which is what Keras writes when it serialises an optimizer.
    namespace = {"__module__": stock.__module__, "__doc__": stock.__doc__}
    return type(stock.__name__, (way, stock), namespace)
