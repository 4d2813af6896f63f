"""The update of a whole variable by each stock optimizer, as a formula of one element.

A formula has the operations of the stock optimizer in stock's order, so that it rounds where stock
does. It is a function of an element, its gradient, its slots, and numbers by name, that returns the
new element and slots: see `group_embedding.ops.dense_update.trace`.
"""

from __future__ import annotations

from group_embedding.keras_compat import IS_KERAS_3
from group_embedding.ops.dense_update import (
    magnitude,
    maximum,
    minimum,
    reciprocal_root,
    root,
)


def sgd(x, g, slots, n):
    return [x - g * n["learning_rate"]]


def momentum(x, g, slots, n):
    m = slots[0] * n["momentum"] + g
    return [x - m * n["learning_rate"], m]


def nesterov(x, g, slots, n):
    m = slots[0] * n["momentum"] + g
    return [x - (g * n["learning_rate"] + m * n["momentum"] * n["learning_rate"]), m]


def keras_momentum(x, g, slots, n):
    m = slots[0] * n["momentum"] - g * n["learning_rate"]
    return [x + m, m]


def keras_nesterov(x, g, slots, n):
    m = slots[0] * n["momentum"] - g * n["learning_rate"]
    return [x + (m * n["momentum"] - g * n["learning_rate"]), m]


def adagrad(x, g, slots, n):
    accumulator = slots[0] + g * g
    return [x - g * n["learning_rate"] / root(accumulator + n["epsilon"]), accumulator]


def legacy_adagrad(x, g, slots, n):
    accumulator = slots[0] + g * g
    return [x - g * n["learning_rate"] / (root(accumulator) + n["epsilon"]), accumulator]


def v1_adagrad(x, g, slots, n):
    accumulator = slots[0] + g * g
    return [x - g * n["learning_rate"] * reciprocal_root(accumulator), accumulator]


def adam(x, g, slots, n):
    m = slots[0] + (g - slots[0]) * n["1 - beta_1"]
    v = slots[1] + (g * g - slots[1]) * n["1 - beta_2"]
    return [x - m * n["alpha"] / (root(v) + n["epsilon"]), m, v]


def amsgrad(x, g, slots, n):
    m = slots[0] + (g - slots[0]) * n["1 - beta_1"]
    v = slots[1] + (g * g - slots[1]) * n["1 - beta_2"]
    greatest = maximum(slots[2], v)
    return [x - m * n["alpha"] / (root(greatest) + n["epsilon"]), m, v, greatest]


def adamax(x, g, slots, n):
    m = slots[0] + (g - slots[0]) * n["1 - beta_1"]
    u = maximum(n["beta_2"] * slots[1], magnitude(g))
    return [x - n["learning_rate"] * m / (n["1 - beta_1_power"] * (u + n["epsilon"])), m, u]


def legacy_adamax(x, g, slots, n):
    m = slots[0] + (g - slots[0]) * n["1 - beta_1"]
    u = maximum(n["beta_2"] * slots[1], magnitude(g))
    return [x - n["rate"] * (m / (u + n["epsilon"])), m, u]


def _rmsprop(slots, g, n):
    """The new slots `rms`, and `mg` if there is one, of Keras."""
    rms = n["rho"] * slots[0] + n["1 - rho"] * (g * g)
    return [rms, *(n["rho"] * mg + n["1 - rho"] * g for mg in slots[1:])]


def _variance(rms, *mg):
    return rms - mg[0] * mg[0] if mg else rms


def _keras_rmsprop_change(moments, g, n):
    denominator = _variance(*moments) + n["epsilon"]
    if IS_KERAS_3:
        return n["learning_rate"] * g / root(denominator)
    return n["learning_rate"] * g * reciprocal_root(denominator)


def rmsprop(x, g, slots, n):
    moments = _rmsprop(slots, g, n)
    return [x - _keras_rmsprop_change(moments, g, n), *moments]


def rmsprop_with_momentum(x, g, slots, n):
    moments = _rmsprop(slots[1:], g, n)
    m = n["momentum"] * slots[0] + _keras_rmsprop_change(moments, g, n)
    return [x - m, m, *moments]


def legacy_rmsprop(x, g, slots, n):
    moments = _rmsprop(slots, g, n)
    change = n["learning_rate"] * g / (root(_variance(*moments)) + n["epsilon"])
    return [x - change, *moments]


def v1_rmsprop(x, g, slots, n):
    m, rms, *mg = slots
    rms = rms + (g * g - rms) * n["1 - rho"]
    mg = [mean + (g - mean) * n["1 - rho"] for mean in mg]
    m = m * n["momentum"] + g * n["learning_rate"] / root(_variance(rms, *mg) + n["epsilon"])
    return [x - m, m, rms, *mg]


def adadelta(x, g, slots, n):
    def mean(old, new):
        square = n["1 - rho"] * (new * new) if IS_KERAS_3 else n["1 - rho"] * new * new
        return n["rho"] * old + square

    accumulator = mean(slots[0], g)
    change = root(slots[1] + n["epsilon"]) * g / root(accumulator + n["epsilon"])
    return [x - n["learning_rate"] * change, accumulator, mean(slots[1], change)]


def v1_adadelta(x, g, slots, n):
    accumulator = slots[0] * n["rho"] + g * g * n["1 - rho"]
    reciprocal = reciprocal_root(accumulator + n["epsilon"])
    change = root(slots[1] + n["epsilon"]) * reciprocal * g
    changes = slots[1] * n["rho"] + change * change * n["1 - rho"]
    return [x - change * n["learning_rate"], accumulator, changes]


def ftrl(x, g, slots, n):
    accumulator = slots[0] + g * g
    change = (root(accumulator) - root(slots[0])) / n["learning_rate"] * x
    linear = slots[1] + (g + n["2 l2_shrinkage"] * x - change)
    quadratic = root(accumulator) / n["learning_rate"] + n["2 l2"]
    clipped = minimum(maximum(linear, n["-l1"]), n["l1"])
    return [(clipped - linear) / quadratic, accumulator, linear]
