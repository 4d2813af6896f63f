"""All ranks start from the dense variables of rank 0."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from group_embedding.ranks.exchange.active import current
from group_embedding.ranks.sharding.replica_tables import is_over_replicas
from group_embedding.ranks.sharding.sharded_table import exchange_of


def broadcast_variables(variables: Iterable[tf.Variable]) -> None:
    """Sets variables to those of rank 0, eagerly. Every rank must call it, for the same variables.

    Sharded tables are left alone: each rank has rows of its own. `ge.DistributedOptimizer` does
    this when it meets its variables; a custom loop that computes gradients before that should call
    it first.

    Raises:
        ValueError: A variable has no value yet, as of a model of Keras 3 that a `tf.function` is
            the first to call.
    """
    exchange = current()
    if exchange.num_ranks == 1 or is_over_replicas(exchange):  # which start as one
        return
    dense = [v for v in variables if _is_dense(v)]
    tensors = [_value_of(variable) for variable in dense]
    values = exchange.broadcast(tensors, "broadcast_variables")
    for variable, value in zip(dense, values):
        variable.assign(value)


def _value_of(variable):
    value = tf.convert_to_tensor(variable)
    # What TensorFlow reads of a variable that is made where a function is traced.
    if not value.shape.is_compatible_with(variable.shape):
        raise ValueError(
            f"variable '{variable.name}': expected a value, which all ranks are to start from, got "
            "none: Keras 3 has none yet where a tf.function is the first to call a model; build "
            "the model before, by model.build(shape) or by calling it outside of the function"
        )
    return value


def broadcast_initial_values(exchange, variables):
    """Makes the initializers of graph variables yield the initial values of rank 0.

    Initializers wait for nothing that the caller's scopes make ops wait for, such as the updates of
    batch norm, which read variables.
    """
    for variable in variables:
        value = _initial_value_of(variable)
        if value is None or not _is_dense(variable) or hasattr(variable, _DONE):
            continue
        with tf.control_dependencies(None), tf.name_scope(f"{variable.op.name}/broadcast/"):
            (value,) = exchange.broadcast([value], "initial_value")
            variable._initializer_op = variable.assign(value, read_value=False)
        setattr(variable, _DONE, True)


def _initial_value_of(variable):
    """The value that the initializer of a graph variable assigns: `initial_value`, in which
    TensorFlow has replaced reads of other variables by their initial values. None if the variable
    has none."""
    if getattr(variable, "initial_value", None) is None:
        return None
    initializer = variable.initializer
    assigns = initializer.type in ("Assign", "AssignVariableOp")
    return initializer.inputs[1] if assigns else variable.initial_value


_DONE = "_group_embedding_broadcast"


def _is_dense(variable):
    dtype = tf.as_dtype(variable.dtype).base_dtype
    return exchange_of(variable) is None and dtype not in (tf.string, tf.resource, tf.variant)
