"""The update rules of cc/optimizer/rules.h in NumPy, in float64, and the optimizers without a stock
counterpart."""

from typing import NamedTuple

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


class OwnOptimizer(NamedTuple):
    """How an optimizer of ge.optimizers uses its rule."""

    rule: str  # of RULES
    slots: tuple  # of (shape, start): "row" is one number per row, "full" one per element
    numbers: dict  # of the rule, where HYPER has another
    arguments: dict = {}  # of the optimizer, with which it has these numbers
    is_whole_one_row: bool = False  # a variable with a dense gradient is one row

    def hyper(self, learning_rate, step):
        powers = {"beta_1_power": 0.9**step, "beta_2_power": 0.999**step}
        numbers = {"beta_2": 0.999, "epsilon_in_root": 0.0, **powers, **self.numbers}
        return HYPER | {"learning_rate": learning_rate} | numbers

    def make_slots(self, shape):
        return [np.full(shape[:1] if kind == "row" else shape, start) for kind, start in self.slots]

    def step_of_rows(self, x, rows, g, slots, hyper):
        """Moves rows of x, [rows, dim] in float64, and of its slots."""
        of_rows = [slot[rows] for slot in slots]
        x[rows] = apply_rule(self.rule, hyper, g, x[rows], of_rows)
        for slot, new in zip(slots, of_rows):
            slot[rows] = new

    def first_step_of_whole(self, x, g, learning_rate):
        """A variable with a dense gradient after one step."""
        as_rows = (1, -1) if self.is_whole_one_row else x.shape if x.ndim == 2 else (-1, 1)
        rows = np.reshape(x, as_rows).astype(np.float64)
        every = np.arange(len(rows))
        slots, hyper = self.make_slots(rows.shape), self.hyper(learning_rate, 1)
        self.step_of_rows(rows, every, np.reshape(g, as_rows), slots, hyper)
        return rows.reshape(x.shape)


OWN = {
    "RowwiseAdagrad": OwnOptimizer("rowwise_adagrad", (("row", 0.1),), {"epsilon": 1e-7}),
    "RowwiseAdam": OwnOptimizer("rowwise_adam", (("full", 0.0), ("row", 0.0)), {"epsilon": 1e-7}),
    "Lamb": OwnOptimizer(
        "lamb",
        (("full", 0.0), ("full", 0.0)),
        {"epsilon": 1e-6, "l2": 0.02},
        {"weight_decay": 0.02},
        is_whole_one_row=True,
    ),
}
