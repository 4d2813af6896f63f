"""The update of variables with a dense gradient by Keras optimizers: those of one dtype in one op,
where a formula has the bits of the stock optimizer's own update; elsewhere stock updates them."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.distribute import values
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util, resource_variable_ops

from group_embedding.config import TABLE_DTYPES
from group_embedding.lookups.lookup_table import tf_variable
from group_embedding.ops.deferred import is_deferring
from group_embedding.ops.dense_update import dense_update, trace
from group_embedding.variables import EmbeddingVariable


class Decay(NamedTuple):
    """Weight decay as Keras has it: a variable shrinks by `rate` times the learning rate of itself
    before the update. `acts_on`: whether it does so for a variable."""

    rate: Any
    learning_rate: Any
    acts_on: Callable[[Any], bool]


def update_together(rule, pairs, slot, decay=None):
    """Updates those of `pairs` that one op updates as the stock optimizer would.

    Args:
        rule: a function of a dtype that returns a DenseRuleSpec or None; or None.
        pairs: (gradient, variable), as the optimizer is given them.
        slot: a function of a slot's name and a variable that returns the slot.
        decay: None, or a Decay.

    Returns:
        The pairs that are left to the stock optimizer.
    """
    if rule is None or not _may_update():
        return pairs
    groups, left = {}, []
    times = collections.Counter(id(_inner(variable)) for _, variable in pairs)
    for pair in pairs:
        kind = _kind(*pair)
        if kind is None or times[id(_inner(pair[1]))] > 1:
            left.append(pair)
            continue
        is_decayed = decay is not None and decay.acts_on(pair[1])
        groups.setdefault((*kind, is_decayed), []).append(pair)
    for (dtype, device, is_decayed), alike in groups.items():
        with tf.device(device) if device else contextlib.nullcontext():
            spec = rule(dtype)
            if spec is None:
                left += alike
                continue
            _update(spec, dtype, alike, slot, decay if is_decayed else None)
    return left


def _may_update():
    """Returns whether this step may have native ops, and each variable is one variable."""
    in_xla = control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph())
    return not (in_xla or is_deferring() or tf.distribute.has_strategy())


def _inner(variable):
    """The `tf.Variable` itself: neither Keras 3's, nor one that a policy of Keras 2 casts."""
    variable = tf_variable(variable)
    return variable._variable if hasattr(variable, "true_dtype") else variable


def _kind(gradient, variable):
    """Returns the properties that variables of one op share; None: stock updates this one."""
    variable = _inner(variable)
    if not tf.is_tensor(gradient) or not isinstance(gradient, tf.Tensor):
        return None
    if isinstance(variable, (EmbeddingVariable, values.DistributedVariable)):
        return None
    if not resource_variable_ops.is_resource_variable(variable):
        return None
    dtype = tf.as_dtype(variable.dtype).base_dtype
    is_known = variable.shape.is_fully_defined() and gradient.shape == variable.shape
    if dtype.name not in TABLE_DTYPES or gradient.dtype != dtype or not is_known:
        return None
    return dtype, variable.device


def _update(spec, dtype, pairs, slot, decay):
    formula, numbers = spec.formula, dict(spec.numbers)
    if decay is not None:
        formula = _decaying(formula)
        numbers |= {"decay": decay.rate, "decay_learning_rate": decay.learning_rate}
    program = trace(formula, len(spec.slots), tuple(numbers))
    exact = [tf.cast(tf.cast(number, dtype), tf.float32) for number in numbers.values()]
    slots = [_inner(slot(name, variable)) for _, variable in pairs for name in spec.slots]
    variables = [_inner(variable) for _, variable in pairs]
    grads = [gradient for gradient, _ in pairs]
    dense_update(variables, slots, grads, program, tf.stack(exact))


@functools.cache
def _decaying(formula):
    def decayed(x, g, slots, n):
        return formula(x - x * n["decay"] * n["decay_learning_rate"], g, slots, n)

    return decayed
