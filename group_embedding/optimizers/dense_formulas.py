"""The update of a whole variable by each Keras optimizer, as a formula of one element.

A formula has the operations of the stock optimizer in stock's order, so that it rounds where stock
does. It is a function of an element, its gradient, its slots, and numbers by name, that returns the
new element and slots: see `group_embedding.ops.dense_update.trace`.

A rule spec, `keras_...`, is a function of an optimizer that is about to apply gradients, and of the
dtype of variables. Numbers are computed as stock computes them, in that dtype. It returns None
where the optimizer has a variant without a formula: stock then updates all its variables.

Optimizers of tf.compat.v1.train and of legacy Keras have no formula: TensorFlow updates a variable
of theirs in one op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from group_embedding.keras_compat import IS_KERAS_3
from group_embedding.ops.dense_update import magnitude, maximum, minimum, root


class DenseRuleSpec(NamedTuple):
    """A formula, the optimizer's names of its slots, and the numbers by name."""

    formula: Callable
    slots: tuple[str, ...]
    numbers: dict[str, Any]


DenseRule = Callable[[Any, tf.DType], Optional[DenseRuleSpec]]


def sgd(x, g, slots, n):
    return [x - g * n["learning_rate"]]


def momentum(x, g, slots, n):
    m = slots[0] * n["momentum"] - g * n["learning_rate"]
    return [x + m, m]


def nesterov(x, g, slots, n):
    m = slots[0] * n["momentum"] - g * n["learning_rate"]
    return [x + (m * n["momentum"] - g * n["learning_rate"]), m]


def keras_sgd(optimizer, dtype):
    if not optimizer.momentum and IS_KERAS_3:  # Keras 2 keeps the slot of a momentum of 0
        return DenseRuleSpec(sgd, (), _rate(optimizer, dtype))
    formula = nesterov if optimizer.nesterov else momentum
    numbers = {**_rate(optimizer, dtype), "momentum": optimizer.momentum}
    return DenseRuleSpec(formula, ("momentums",), numbers)


def adagrad(x, g, slots, n):
    accumulator = slots[0] + g * g
    return [x - g * n["learning_rate"] / root(accumulator + n["epsilon"]), accumulator]


def keras_adagrad(optimizer, dtype):
    numbers = {**_rate(optimizer, dtype), "epsilon": optimizer.epsilon}
    return DenseRuleSpec(adagrad, ("_accumulators",), numbers)


def adam(x, g, slots, n):
    m = slots[0] + (g - slots[0]) * n["1 - beta_1"]
    v = slots[1] + (g * g - slots[1]) * n["1 - beta_2"]
    return [x - m * n["alpha"] / (root(v) + n["epsilon"]), m, v]


def amsgrad(x, g, slots, n):
    m = slots[0] + (g - slots[0]) * n["1 - beta_1"]
    v = slots[1] + (g * g - slots[1]) * n["1 - beta_2"]
    greatest = maximum(slots[2], v)
    return [x - m * n["alpha"] / (root(greatest) + n["epsilon"]), m, v, greatest]


def keras_adam(optimizer, dtype):
    power_1, power_2 = (
        _power(optimizer, beta, dtype) for beta in (optimizer.beta_1, optimizer.beta_2)
    )
    learning_rate = _rate(optimizer, dtype)["learning_rate"]
    numbers = {
        "alpha": learning_rate * tf.sqrt(1 - power_2) / (1 - power_1),
        "1 - beta_1": 1 - optimizer.beta_1,
        "1 - beta_2": 1 - optimizer.beta_2,
        "epsilon": optimizer.epsilon,
    }
    slots = ("_momentums", "_velocities")
    if optimizer.amsgrad:
        return DenseRuleSpec(amsgrad, (*slots, "_velocity_hats"), numbers)
    return DenseRuleSpec(adam, slots, numbers)


def adamax(x, g, slots, n):
    m = slots[0] + (g - slots[0]) * n["1 - beta_1"]
    u = maximum(n["beta_2"] * slots[1], magnitude(g))
    return [x - n["learning_rate"] * m / (n["1 - beta_1_power"] * (u + n["epsilon"])), m, u]


def keras_adamax(optimizer, dtype):
    numbers = {
        **_rate(optimizer, dtype),
        "1 - beta_1": 1 - optimizer.beta_1,
        "beta_2": optimizer.beta_2,
        "1 - beta_1_power": 1 - _power(optimizer, optimizer.beta_1, dtype),
        "epsilon": optimizer.epsilon,
    }
    return DenseRuleSpec(adamax, ("_m", "_u"), numbers)


def rmsprop(x, g, slots, n):
    change, *moments = _rmsprop_change(g, slots, n)
    return [x - change, *moments]


def rmsprop_with_momentum(x, g, slots, n):
    change, *moments = _rmsprop_change(g, slots[1:], n)
    m = n["momentum"] * slots[0] + change
    return [x - m, m, *moments]


def _rmsprop_change(g, slots, n):
    """The change of the element, the new mean square, and the new mean if there is one."""
    square = n["rho"] * slots[0] + n["1 - rho"] * (g * g)
    mean = [n["rho"] * old + n["1 - rho"] * g for old in slots[1:]]
    variance = square - mean[0] * mean[0] if mean else square
    return n["learning_rate"] * g / root(variance + n["epsilon"]), square, *mean


def keras_rmsprop(optimizer, dtype):
    if not IS_KERAS_3:  # Keras 2 multiplies by TensorFlow's reciprocal root
        return None
    numbers = {**_rate(optimizer, dtype), **_rho(optimizer)}
    slots = ("_velocities", "_average_gradients") if optimizer.centered else ("_velocities",)
    if not optimizer.momentum > 0:
        return DenseRuleSpec(rmsprop, slots, numbers)
    numbers["momentum"] = optimizer.momentum
    return DenseRuleSpec(rmsprop_with_momentum, ("_momentums", *slots), numbers)


def adadelta(x, g, slots, n):
    def mean(old, new):
        square = n["1 - rho"] * (new * new) if IS_KERAS_3 else n["1 - rho"] * new * new
        return n["rho"] * old + square

    accumulator = mean(slots[0], g)
    change = root(slots[1] + n["epsilon"]) * g / root(accumulator + n["epsilon"])
    return [x - n["learning_rate"] * change, accumulator, mean(slots[1], change)]


def keras_adadelta(optimizer, dtype):
    numbers = {**_rate(optimizer, dtype), **_rho(optimizer)}
    return DenseRuleSpec(adadelta, ("_accumulated_grads", "_accumulated_delta_vars"), numbers)


def ftrl(x, g, slots, n):
    accumulator = slots[0] + g * g
    change = (root(accumulator) - root(slots[0])) / n["learning_rate"] * x
    linear = slots[1] + (g + n["2 l2_shrinkage"] * x - change)
    quadratic = root(accumulator) / n["learning_rate"] + n["2 l2"]
    clipped = minimum(maximum(linear, n["-l1"]), n["l1"])
    return [(clipped - linear) / quadratic, accumulator, linear]


def keras_ftrl(optimizer, dtype):
    power = optimizer.learning_rate_power
    if not isinstance(power, float) or power != -0.5:  # the formula takes roots
        return None
    numbers = _rate(optimizer, dtype)
    l1 = optimizer.l1_regularization_strength
    l2 = optimizer.l2_regularization_strength + optimizer.beta / (2.0 * numbers["learning_rate"])
    shrinkage = 2 * optimizer.l2_shrinkage_regularization_strength
    more = {"l1": l1, "-l1": -l1, "2 l2": 2 * l2, "2 l2_shrinkage": shrinkage}
    return DenseRuleSpec(ftrl, ("_accumulators", "_linears"), {**numbers, **more})


def _rate(optimizer, dtype):
    return {"learning_rate": tf.cast(tf.convert_to_tensor(optimizer.learning_rate), dtype)}


def _rho(optimizer):
    return {"rho": optimizer.rho, "1 - rho": 1 - optimizer.rho, "epsilon": optimizer.epsilon}


def _power(optimizer, beta, dtype):
    """beta^t at the step t = 1, 2, ... that is about to be taken."""
    step = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, dtype)
    return tf.pow(tf.cast(beta, dtype), step)
