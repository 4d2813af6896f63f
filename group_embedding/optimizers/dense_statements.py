"""Which formula of dense_formulas.py a stock optimizer updates whole variables by, with its slots
and numbers.

A statement is a function of an optimizer that is about to apply gradients, and of the dtype of
variables. It returns None where the optimizer has a variant that no formula states: stock updates
all its variables then. Numbers are computed as stock computes them, in that dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from group_embedding.keras_compat import IS_KERAS_3
from group_embedding.optimizers import dense_formulas as formulas


class DenseStatement(NamedTuple):
    """A formula, the optimizer's names of its slots, and the numbers by name."""

    formula: Callable
    slots: tuple[str, ...]
    numbers: dict[str, Any]


Statement = Callable[[Any, tf.DType], Optional[DenseStatement]]


# tf.compat.v1.train.


def v1_sgd(optimizer, dtype):
    return DenseStatement(formulas.sgd, (), _v1(optimizer._learning_rate_tensor, dtype))


def v1_momentum(optimizer, dtype):
    numbers = _v1(optimizer._learning_rate_tensor, dtype, momentum=optimizer._momentum_tensor)
    return DenseStatement(
        formulas.nesterov if optimizer._use_nesterov else formulas.momentum, ("momentum",), numbers
    )


def v1_adagrad(optimizer, dtype):
    numbers = _v1(optimizer._learning_rate_tensor, dtype)
    return DenseStatement(formulas.v1_adagrad, ("accumulator",), numbers)


def v1_adam(optimizer, dtype):
    powers = [tf.cast(power, dtype) for power in optimizer._get_beta_accumulators()]
    numbers = _v1(optimizer._lr_t, dtype, epsilon=optimizer._epsilon_t)
    numbers["alpha"] = _alpha(numbers.pop("learning_rate"), *powers)
    numbers["1 - beta_1"] = 1 - tf.cast(optimizer._beta1_t, dtype)
    numbers["1 - beta_2"] = 1 - tf.cast(optimizer._beta2_t, dtype)
    return DenseStatement(formulas.adam, ("m", "v"), numbers)


def v1_adadelta(optimizer, dtype):
    numbers = _v1(optimizer._lr_t, dtype, rho=optimizer._rho_t, epsilon=optimizer._epsilon_t)
    numbers["1 - rho"] = 1 - numbers["rho"]
    return DenseStatement(formulas.v1_adadelta, ("accum", "accum_update"), numbers)


def v1_ftrl(optimizer, dtype):
    if not _is_root(optimizer._learning_rate_power):
        return None
    numbers = _v1(
        optimizer._learning_rate_tensor, dtype, l1=optimizer._l1_regularization_strength_tensor
    )
    l2 = tf.cast(optimizer._adjusted_l2_regularization_strength_tensor, dtype)
    shrinkage = tf.cast(optimizer._l2_shrinkage_regularization_strength_tensor, dtype)
    more = {"-l1": -numbers["l1"], "2 l2": 2 * l2, "2 l2_shrinkage": 2 * shrinkage}
    return DenseStatement(formulas.ftrl, ("accum", "linear"), {**numbers, **more})


def v1_rmsprop(optimizer, dtype):
    numbers = _v1(
        optimizer._learning_rate_tensor,
        dtype,
        momentum=optimizer._momentum_tensor,
        epsilon=optimizer._epsilon_tensor,
    )
    numbers["1 - rho"] = 1 - tf.cast(optimizer._decay_tensor, dtype)
    slots = ("momentum", "rms", "mg") if optimizer._centered else ("momentum", "rms")
    return DenseStatement(formulas.v1_rmsprop, slots, numbers)


def _v1(learning_rate, dtype, **numbers):
    numbers = {"learning_rate": learning_rate, **numbers}
    return {name: tf.cast(number, dtype) for name, number in numbers.items()}


def _alpha(learning_rate, beta_1_power, beta_2_power):
    return learning_rate * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power)


def _is_root(learning_rate_power):
    """Returns whether Ftrl takes square roots, not other powers."""
    return isinstance(learning_rate_power, float) and learning_rate_power == -0.5


# tf.keras.optimizers.legacy. Its Ftrl may be given another power at any time.


def legacy_sgd(optimizer, dtype):
    if not optimizer._momentum:
        return DenseStatement(formulas.sgd, (), _legacy(optimizer, dtype))
    formula = formulas.keras_nesterov if optimizer.nesterov else formulas.keras_momentum
    return DenseStatement(formula, ("momentum",), _legacy(optimizer, dtype, "momentum"))


def legacy_adagrad(optimizer, dtype):
    numbers = {**_legacy(optimizer, dtype), "epsilon": optimizer.epsilon}
    return DenseStatement(formulas.legacy_adagrad, ("accumulator",), numbers)


def legacy_adam(optimizer, dtype):
    beta_1, beta_2, *powers = _legacy_betas(optimizer, dtype)
    numbers = {
        "alpha": _alpha(optimizer._decayed_lr(dtype), *powers),
        "1 - beta_1": 1 - beta_1,
        "1 - beta_2": 1 - beta_2,
        "epsilon": optimizer.epsilon,
    }
    if optimizer.amsgrad:
        return DenseStatement(formulas.amsgrad, ("m", "v", "vhat"), numbers)
    return DenseStatement(formulas.adam, ("m", "v"), numbers)


def legacy_adamax(optimizer, dtype):
    beta_1, beta_2, beta_1_power, _ = _legacy_betas(optimizer, dtype)
    numbers = {
        "rate": optimizer._decayed_lr(dtype) / (1 - beta_1_power),
        "1 - beta_1": 1 - beta_1,
        "beta_2": beta_2,
        "epsilon": optimizer.epsilon,
    }
    return DenseStatement(formulas.legacy_adamax, ("m", "v"), numbers)


def legacy_adadelta(optimizer, dtype):
    numbers = {**_legacy(optimizer, dtype, "rho"), "epsilon": optimizer.epsilon}
    numbers["1 - rho"] = 1 - numbers["rho"]
    return DenseStatement(formulas.v1_adadelta, ("accum_grad", "accum_var"), numbers)


def legacy_rmsprop(optimizer, dtype):
    numbers = {**_legacy(optimizer, dtype, "rho"), "epsilon": optimizer.epsilon}
    rho = numbers["rho"]
    numbers["1 - rho"] = 1 - rho
    slots = ("rms", "mg") if optimizer.centered else ("rms",)
    if not optimizer._momentum:
        return DenseStatement(formulas.legacy_rmsprop, slots, numbers)
    del numbers["rho"]
    numbers["momentum"] = optimizer._get_hyper("momentum", dtype)
    return DenseStatement(formulas.v1_rmsprop, ("momentum", *slots), numbers)


def _legacy(optimizer, dtype, *names):
    numbers = {name: optimizer._get_hyper(name, dtype) for name in names}
    return {"learning_rate": optimizer._decayed_lr(dtype), **numbers}


def _legacy_betas(optimizer, dtype):
    step = tf.cast(optimizer.iterations + 1, dtype)
    betas = [optimizer._get_hyper(name, dtype) for name in ("beta_1", "beta_2")]
    return *betas, *(tf.pow(beta, step) for beta in betas)


# tf.keras.optimizers, of Keras 2.11 and later and of Keras 3.


def keras_sgd(optimizer, dtype):
    if not optimizer.momentum and IS_KERAS_3:  # Keras 2 keeps the slot of a momentum of 0
        return DenseStatement(formulas.sgd, (), _keras(optimizer, dtype))
    formula = formulas.keras_nesterov if optimizer.nesterov else formulas.keras_momentum
    numbers = {**_keras(optimizer, dtype), "momentum": optimizer.momentum}
    return DenseStatement(formula, ("momentums",), numbers)


def keras_adagrad(optimizer, dtype):
    numbers = {**_keras(optimizer, dtype), "epsilon": optimizer.epsilon}
    return DenseStatement(formulas.adagrad, ("_accumulators",), numbers)


def keras_adam(optimizer, dtype):
    powers = [_power(optimizer, beta, dtype) for beta in (optimizer.beta_1, optimizer.beta_2)]
    numbers = {
        "alpha": _alpha(_keras(optimizer, dtype)["learning_rate"], *powers),
        "1 - beta_1": 1 - optimizer.beta_1,
        "1 - beta_2": 1 - optimizer.beta_2,
        "epsilon": optimizer.epsilon,
    }
    slots = ("_momentums", "_velocities")
    if optimizer.amsgrad:
        return DenseStatement(formulas.amsgrad, (*slots, "_velocity_hats"), numbers)
    return DenseStatement(formulas.adam, slots, numbers)


def keras_adamax(optimizer, dtype):
    numbers = {
        **_keras(optimizer, dtype),
        "1 - beta_1": 1 - optimizer.beta_1,
        "beta_2": optimizer.beta_2,
        "1 - beta_1_power": 1 - _power(optimizer, optimizer.beta_1, dtype),
        "epsilon": optimizer.epsilon,
    }
    return DenseStatement(formulas.adamax, ("_m", "_u"), numbers)


def keras_adadelta(optimizer, dtype):
    numbers = {**_keras(optimizer, dtype), **_rho(optimizer)}
    return DenseStatement(
        formulas.adadelta, ("_accumulated_grads", "_accumulated_delta_vars"), numbers
    )


def keras_ftrl(optimizer, dtype):
    if not _is_root(optimizer.learning_rate_power):
        return None
    numbers = _keras(optimizer, dtype)
    l1 = optimizer.l1_regularization_strength
    l2 = optimizer.l2_regularization_strength + optimizer.beta / (2.0 * numbers["learning_rate"])
    shrinkage = 2 * optimizer.l2_shrinkage_regularization_strength
    more = {"l1": l1, "-l1": -l1, "2 l2": 2 * l2, "2 l2_shrinkage": shrinkage}
    return DenseStatement(formulas.ftrl, ("_accumulators", "_linears"), {**numbers, **more})


def keras_rmsprop(optimizer, dtype):
    numbers = {**_keras(optimizer, dtype), **_rho(optimizer)}
    slots = ("_velocities", "_average_gradients") if optimizer.centered else ("_velocities",)
    if not optimizer.momentum > 0:
        return DenseStatement(formulas.rmsprop, slots, numbers)
    numbers["momentum"] = optimizer.momentum
    return DenseStatement(formulas.rmsprop_with_momentum, ("_momentums", *slots), numbers)


def _keras(optimizer, dtype):
    return {"learning_rate": tf.cast(tf.convert_to_tensor(optimizer.learning_rate), dtype)}


def _rho(optimizer):
    return {"rho": optimizer.rho, "1 - rho": 1 - optimizer.rho, "epsilon": optimizer.epsilon}


def _power(optimizer, beta, dtype):
    """beta^t at the step t = 1, 2, ... that is about to be taken."""
    step = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, dtype)
    return tf.pow(tf.cast(beta, dtype), step)
