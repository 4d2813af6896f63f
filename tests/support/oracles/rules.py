"""The update rules of cc/optimizer/rules.h in NumPy, in float64."""

import numpy as np

HYPER = {
    "apply": 1.0,
    "gradient_scale": 1.0,
    "clip_value": np.inf,
    "weight_decay": 0.0,
    "rounding_key": 0.0,
    "learning_rate": 0.1,
    "momentum": 0.9,
    "nesterov": 0.0,
    "rho": 0.9,
    "centered": 0.0,
    "beta_1": 0.9,
    "beta_2": 0.99,
    "beta_1_power": 0.9**3,
    "beta_2_power": 0.99**3,
    "epsilon": 1e-3,
    "epsilon_in_root": 1e-3,
    "l1": 0.01,
    "l2": 0.02,
    "l2_shrinkage": 0.03,
    "learning_rate_power": -0.5,
    "accumulator_decay_rate": 0.8,
    "accumulator_floor": 0.2,
    "decays_due": 0.6,  # some slots of tests have decayed less often, some more
    "step": 3.0,
}


def make_hyper(names, **changes):
    assert set(changes) <= set(names)
    return np.array([(HYPER | changes)[name] for name in names], np.float32)


def sgd(h, g, x, s):
    return x - h["learning_rate"] * g


def momentum(h, g, x, s):
    s[0][:] = h["momentum"] * s[0] + g
    return x - h["learning_rate"] * (g + h["momentum"] * s[0] if h["nesterov"] else s[0])


def keras_momentum(h, g, x, s):
    step = h["learning_rate"] * g
    s[0][:] = h["momentum"] * s[0] - step
    return x + (h["momentum"] * s[0] - step if h["nesterov"] else s[0])


def adagrad(h, g, x, s):
    s[0][:] = s[0] + g * g
    return x - h["learning_rate"] * g / (np.sqrt(s[0] + h["epsilon_in_root"]) + h["epsilon"])


def rowwise_adagrad(h, g, x, s):
    s[0][:] = s[0] + (g * g).mean(1)
    root = np.sqrt(s[0] + h["epsilon_in_root"]) + h["epsilon"]
    return x - (h["learning_rate"] / root)[:, None] * g


def adam(h, g, x, s):
    s[0][:] = h["beta_1"] * s[0] + (1 - h["beta_1"]) * g
    s[1][:] = h["beta_2"] * s[1] + (1 - h["beta_2"]) * g * g
    s[2][:] = np.maximum(s[2], s[1])
    rate = h["learning_rate"] * np.sqrt(1 - h["beta_2_power"]) / (1 - h["beta_1_power"])
    return x - rate * s[0] / (np.sqrt(s[2]) + h["epsilon"])


def ftrl_quadratic(h, g, x, s):
    def power(accumulator):
        return accumulator ** -h["learning_rate_power"]

    accumulator = s[0] + g * g
    shrunk = g + 2 * h["l2_shrinkage"] * x
    s[1][:] = s[1] + shrunk - (power(accumulator) - power(s[0])) / h["learning_rate"] * x
    s[0][:] = accumulator
    return power(accumulator) / h["learning_rate"] + 2 * h["l2"]


def ftrl(h, g, x, s):
    quadratic = ftrl_quadratic(h, g, x, s)
    step = (np.copysign(h["l1"], s[1]) - s[1]) / quadratic
    return np.where(np.abs(s[1]) <= h["l1"], 0.0, step)  # NaN stays NaN


def group_ftrl(h, g, x, s):
    quadratic = ftrl_quadratic(h, g, x, s)
    norm = np.linalg.norm(s[1], axis=1, keepdims=True)
    return -np.maximum(0, 1 - h["l1"] / norm) * s[1] / quadratic


def rmsprop(h, g, x, s):
    s[0][:] = s[0] + (1 - h["rho"]) * (g * g - s[0])
    s[2][:] = s[2] + (1 - h["rho"]) * (g - s[2])
    variance = s[0] - h["centered"] * s[2] ** 2
    root = np.sqrt(variance + h["epsilon_in_root"]) + h["epsilon"]
    s[1][:] = h["momentum"] * s[1] + h["learning_rate"] * g / root
    return x - s[1]


def lamb(h, g, x, s):
    s[0][:] = h["beta_1"] * s[0] + (1 - h["beta_1"]) * g
    s[1][:] = h["beta_2"] * s[1] + (1 - h["beta_2"]) * g * g
    root = np.sqrt(s[1] / (1 - h["beta_2_power"])) + h["epsilon"]
    r = s[0] / (1 - h["beta_1_power"]) / root + h["l2"] * x
    norm_x = np.linalg.norm(x, axis=1, keepdims=True)
    norm_r = np.linalg.norm(r, axis=1, keepdims=True)
    both = (norm_x > 0) & (norm_r > 0)
    trust = np.where(both, norm_x / np.where(both, norm_r, 1.0), 1.0)
    return x - h["learning_rate"] * trust * r


def adagrad_decay(h, g, x, s):
    due = s[1] < np.float32(h["decays_due"])
    decayed = np.maximum(h["accumulator_decay_rate"] * s[0], h["accumulator_floor"])
    s[0][:] = np.where(due, decayed, s[0]) + g * g
    s[1][:] = s[1] + due
    return x - h["learning_rate"] * g / np.sqrt(s[0])


def adamw(h, g, x, s):
    return adam(h, g, x - h["l2"] * x, s)


def adamax(h, g, x, s):
    s[0][:] = h["beta_1"] * s[0] + (1 - h["beta_1"]) * g
    s[1][:] = np.maximum(h["beta_2"] * s[1], np.abs(g))
    return x - h["learning_rate"] / (1 - h["beta_1_power"]) * s[0] / (s[1] + h["epsilon"])


def adadelta(h, g, x, s):
    s[0][:] = h["rho"] * s[0] + (1 - h["rho"]) * g * g
    d = np.sqrt(s[1] + h["epsilon_in_root"]) / np.sqrt(s[0] + h["epsilon_in_root"]) * g
    s[1][:] = h["rho"] * s[1] + (1 - h["rho"]) * d * d
    return x - h["learning_rate"] * d


def rowwise_adam(h, g, x, s):
    s[0][:] = h["beta_1"] * s[0] + (1 - h["beta_1"]) * g
    s[1][:] = h["beta_2"] * s[1] + (1 - h["beta_2"]) * (g * g).mean(1)
    rate = h["learning_rate"] * np.sqrt(1 - h["beta_2_power"]) / (1 - h["beta_1_power"])
    return x - rate * s[0] / (np.sqrt(s[1]) + h["epsilon"])[:, None]


def catch_up_average(h, g, x, s):
    before = h["step"] - 1
    s[0][:] = x + h["momentum"] ** (before - s[1]) * (s[0] - x)
    s[1][:] = before
    return x


def move_average(h, g, x, s):
    s[0][:] = h["momentum"] * s[0] + (1 - h["momentum"]) * x
    s[1][:] = h["step"]
    return x


RULES = {
    f.__name__: f
    for f in (
        sgd, momentum, keras_momentum, adagrad, rowwise_adagrad, adam, ftrl, rmsprop, lamb,
        adagrad_decay, adamw, adamax, adadelta, catch_up_average, move_average,
        group_ftrl, rowwise_adam,
    )
}  # fmt: skip


def apply_rule(name, hyper, gradients, rows, slots):
    """New rows; `slots` (float64, of these rows; None is a slot that is not there) are moved."""
    h = hyper
    if h["apply"] == 0:
        return rows
    g = np.clip(gradients * h["gradient_scale"], -h["clip_value"], h["clip_value"])
    x = rows - h["learning_rate"] * h["weight_decay"] * rows
    return RULES[name](h, g, x, [np.zeros_like(x) if s is None else s for s in slots])
