"""The update rule of each stock optimizer: a rule of cc/optimizer/rules.h, with its slots and
numbers.

A rule spec is a function of an optimizer that is about to apply gradients. Its numbers are Python's
or scalar tensors. Slots have the optimizer's names; the module of the optimizer's family finds
them. None stands for a slot that the rule can do without.
"""

from typing import NamedTuple

import tensorflow as tf

# Those whose update of a number depends on the other numbers of its row.
ROW_RULES = frozenset({"rowwise_adagrad", "rowwise_adam", "group_ftrl", "lamb"})
# Those whose slots may be rounded to bfloat16. The others keep counts, or what must not drift.
SMALL_SLOT_RULES = frozenset({"adagrad", "rowwise_adagrad", "adam", "rowwise_adam"})


class RuleSpec(NamedTuple):
    """A rule, the optimizer's names of its slots, the numbers by name, and what those slots start
    as that are not zeros."""

    rule: str
    slots: tuple
    hyper: dict
    starts: dict = {}


# tf.compat.v1.train. The tensors are those that `_prepare` made of numbers and callables.


def v1_sgd(optimizer):
    return RuleSpec("sgd", (), {"learning_rate": optimizer._learning_rate_tensor})


def v1_momentum(optimizer):
    return RuleSpec(
        "momentum",
        ("momentum",),
        {
            "learning_rate": optimizer._learning_rate_tensor,
            "momentum": optimizer._momentum_tensor,
            "nesterov": float(optimizer._use_nesterov),
        },
    )


def v1_adagrad(optimizer):
    return RuleSpec(
        "adagrad",
        ("accumulator",),
        {"learning_rate": optimizer._learning_rate_tensor},
        {"accumulator": optimizer._initial_accumulator_value},
    )


def v1_adam(optimizer):
    beta_1_power, beta_2_power = optimizer._get_beta_accumulators()
    return RuleSpec(
        "adam",
        ("m", "v", None),
        {
            "learning_rate": optimizer._lr_t,
            "beta_1": optimizer._beta1_t,
            "beta_2": optimizer._beta2_t,
            "beta_1_power": tf.convert_to_tensor(beta_1_power),
            "beta_2_power": tf.convert_to_tensor(beta_2_power),
            "epsilon": optimizer._epsilon_t,
        },
    )


def v1_adadelta(optimizer):
    return RuleSpec(
        "adadelta",
        ("accum", "accum_update"),
        {
            "learning_rate": optimizer._lr_t,
            "rho": optimizer._rho_t,
            "epsilon_in_root": optimizer._epsilon_t,
        },
    )


def v1_ftrl(optimizer):
    return RuleSpec(
        "ftrl",
        ("accum", "linear"),
        {
            "learning_rate": optimizer._learning_rate_tensor,
            "learning_rate_power": optimizer._learning_rate_power_tensor,
            "l1": optimizer._l1_regularization_strength_tensor,
            "l2": optimizer._adjusted_l2_regularization_strength_tensor,
            "l2_shrinkage": optimizer._l2_shrinkage_regularization_strength_tensor,
        },
        {"accum": optimizer._initial_accumulator_value},
    )


def v1_rmsprop(optimizer):
    return RuleSpec(
        "rmsprop",
        ("rms", "momentum", "mg" if optimizer._centered else None),
        {
            "learning_rate": optimizer._learning_rate_tensor,
            "rho": optimizer._decay_tensor,
            "momentum": optimizer._momentum_tensor,
            "centered": float(optimizer._centered),
            "epsilon_in_root": optimizer._epsilon_tensor,
        },
        {"rms": 1.0},
    )


# tf.keras.optimizers.legacy. A hyper-parameter may be a variable, a schedule or a callable.


def _legacy(optimizer, *names):
    hyper = {name: optimizer._get_hyper(name, tf.float32) for name in names}
    return {"learning_rate": optimizer._decayed_lr(tf.float32), **hyper}


def legacy_sgd(optimizer):
    if not optimizer._momentum:
        return RuleSpec("sgd", (), _legacy(optimizer))
    hyper = {**_legacy(optimizer, "momentum"), "nesterov": float(optimizer.nesterov)}
    return RuleSpec("keras_momentum", ("momentum",), hyper)


def legacy_adagrad(optimizer):
    hyper = {**_legacy(optimizer), "epsilon": optimizer.epsilon}
    start = optimizer._initial_accumulator_value
    return RuleSpec("adagrad", ("accumulator",), hyper, {"accumulator": start})


def legacy_adam(optimizer):
    hyper = _legacy(optimizer, "beta_1", "beta_2")
    return RuleSpec(
        "adam",
        ("m", "v", "vhat" if optimizer.amsgrad else None),
        {**hyper, **_beta_powers(optimizer, hyper), "epsilon": optimizer.epsilon},
    )


def legacy_adamax(optimizer):
    hyper = _legacy(optimizer, "beta_1", "beta_2")
    hyper = {**hyper, **_beta_powers(optimizer, hyper), "epsilon": optimizer.epsilon}
    return RuleSpec("adamax", ("m", "v"), hyper)


def legacy_adadelta(optimizer):
    hyper = {**_legacy(optimizer, "rho"), "epsilon_in_root": optimizer.epsilon}
    return RuleSpec("adadelta", ("accum_grad", "accum_var"), hyper)


def legacy_ftrl(optimizer):
    hyper = _legacy(
        optimizer,
        "learning_rate_power",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "beta",
    )
    return RuleSpec(
        "ftrl",
        ("accumulator", "linear"),
        {
            "learning_rate": hyper["learning_rate"],
            "learning_rate_power": hyper["learning_rate_power"],
            "l1": hyper["l1_regularization_strength"],
            "l2": hyper["l2_regularization_strength"]
            + hyper["beta"] / (2.0 * hyper["learning_rate"]),
            "l2_shrinkage": optimizer._l2_shrinkage_regularization_strength,
        },
        {"accumulator": optimizer._initial_accumulator_value},
    )


def legacy_rmsprop(optimizer):
    # Stock adds epsilon below the root with momentum, and beside it without.
    epsilon = "epsilon_in_root" if optimizer._momentum else "epsilon"
    return RuleSpec(
        "rmsprop",
        (
            "rms",
            "momentum" if optimizer._momentum else None,
            "mg" if optimizer.centered else None,
        ),
        {
            **_legacy(optimizer, "rho", "momentum"),
            "centered": float(optimizer.centered),
            epsilon: optimizer.epsilon,
        },
    )


# tf.keras.optimizers, of Keras 2.11 and later and of Keras 3. Slots are named after the lists that
# the optimizer keeps them in.


def keras_sgd(optimizer):
    if not optimizer.momentum:
        return RuleSpec("sgd", (), _keras(optimizer))
    hyper = _keras(optimizer, momentum=optimizer.momentum, nesterov=float(optimizer.nesterov))
    return RuleSpec("keras_momentum", ("momentums",), hyper)


def keras_adagrad(optimizer):
    hyper = _keras(optimizer, epsilon_in_root=optimizer.epsilon)
    start = optimizer.initial_accumulator_value
    return RuleSpec("adagrad", ("_accumulators",), hyper, {"_accumulators": start})


def keras_adam(optimizer):
    hyper = _keras(
        optimizer,
        beta_1=optimizer.beta_1,
        beta_2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
    )
    return RuleSpec(
        "adam",
        ("_momentums", "_velocities", "_velocity_hats" if optimizer.amsgrad else None),
        {**hyper, **_beta_powers(optimizer, hyper)},
    )


def keras_adamax(optimizer):
    hyper = _keras(
        optimizer,
        beta_1=optimizer.beta_1,
        beta_2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
    )
    return RuleSpec("adamax", ("_m", "_u"), {**hyper, **_beta_powers(optimizer, hyper)})


def keras_adadelta(optimizer):
    hyper = _keras(optimizer, rho=optimizer.rho, epsilon_in_root=optimizer.epsilon)
    return RuleSpec("adadelta", ("_accumulated_grads", "_accumulated_delta_vars"), hyper)


def keras_ftrl(optimizer):
    hyper = _keras(
        optimizer,
        learning_rate_power=optimizer.learning_rate_power,
        l1=optimizer.l1_regularization_strength,
        l2_shrinkage=optimizer.l2_shrinkage_regularization_strength,
    )
    hyper["l2"] = optimizer.l2_regularization_strength + optimizer.beta / (
        2.0 * hyper["learning_rate"]
    )
    start = optimizer.initial_accumulator_value
    return RuleSpec("ftrl", ("_accumulators", "_linears"), hyper, {"_accumulators": start})


def keras_rmsprop(optimizer):
    return RuleSpec(
        "rmsprop",
        (
            "_velocities",
            "_momentums" if optimizer.momentum > 0 else None,
            "_average_gradients" if optimizer.centered else None,
        ),
        _keras(
            optimizer,
            rho=optimizer.rho,
            momentum=optimizer.momentum,
            centered=float(optimizer.centered),
            epsilon_in_root=optimizer.epsilon,
        ),
    )


def _keras(optimizer, **hyper):
    learning_rate = tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float32)
    return {"learning_rate": learning_rate, **hyper}


def _beta_powers(optimizer, hyper):
    """beta^t at the step t = 1, 2, ... that is about to be taken."""
    step = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, tf.float32)
    return {
        f"{name}_power": tf.pow(tf.cast(hyper[name], tf.float32), step)
        for name in ("beta_1", "beta_2")
    }
