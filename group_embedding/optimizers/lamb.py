"""`Lamb`: Adam with a trust ratio for each row."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from group_embedding.annotations import Hyperparameter, Optimizer
from group_embedding.keras_compat import keras
from group_embedding.optimizers.own import OwnKeras, OwnV1, make_own, register
from group_embedding.optimizers.rules import RuleSpec, keras_adam, v1_adam


def _update(x, m, v, g, hyper):
    """Updates a whole variable, which is one layer: one trust ratio."""
    m = hyper["beta_1"] * m + (1 - hyper["beta_1"]) * g
    v = hyper["beta_2"] * v + (1 - hyper["beta_2"]) * g * g
    root = tf.sqrt(v / (1 - hyper["beta_2_power"]))
    direction = m / (1 - hyper["beta_1_power"]) / (root + hyper["epsilon"]) + hyper["l2"] * x
    norm, direction_norm = tf.norm(x), tf.norm(direction)
    both = (norm > 0) & (direction_norm > 0)
    ratio = tf.where(both, tf.math.divide_no_nan(norm, direction_norm), 1.0)
    return [x - hyper["learning_rate"] * ratio * direction, m, v]


@register("Lamb")
class KerasLamb(OwnKeras, keras.optimizers.Adam):
    """See `Lamb`."""

    _ge_update_whole = staticmethod(_update)

    def __init__(self, learning_rate, weight_decay, **kwargs):
        super().__init__(learning_rate, amsgrad=False, **kwargs)
        # Not Keras's, which would shrink variables apart from the trust ratio.
        self._ge_weight_decay = weight_decay

    def get_config(self):
        return {**super().get_config(), "weight_decay": self._ge_weight_decay}

    def _ge_rule_spec(self):
        hyper = {**keras_adam(self).hyper, "l2": self._ge_weight_decay}
        return RuleSpec("lamb", ("_momentums", "_velocities"), hyper)


class LambV1(OwnV1, tf.compat.v1.train.AdamOptimizer):
    """See `Lamb`."""

    _ge_update_whole = staticmethod(_update)

    def __init__(self, learning_rate, beta_1, beta_2, epsilon, weight_decay, name):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name)
        self._ge_weight_decay = weight_decay

    def _ge_rule_spec(self):
        hyper = {name: tf.cast(value, tf.float32) for name, value in v1_adam(self).hyper.items()}
        return RuleSpec("lamb", ("m", "v"), {**hyper, "l2": self._ge_weight_decay})


def Lamb(  # noqa: N802
    learning_rate: Hyperparameter = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
    name: str = "Lamb",
    *,
    skip_nonfinite: bool = False,
    stochastic_rounding_seed: int | None = None,
    **kwargs: Any,
) -> Optimizer:
    """LAMB (You et al. 2020): Adam's direction, as long as what it changes.

    Each looked-up row of a table is a layer of its own, with its own trust ratio, and so is each
    other variable as a whole. With x the layer, m and v Adam's moments (moving only for rows that
    were looked up) and t the step:

        r = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon) + weight_decay x
        x <- x - learning_rate |x| / |r| r      (a ratio of 1 where either norm is 0)

    Args:
        learning_rate: a number, a schedule or a tensor.
        beta_1, beta_2, epsilon: as in Adam.
        weight_decay: see above.
        name: of the optimizer.
        skip_nonfinite, stochastic_rounding_seed: see `wrap`.
        **kwargs: of the Keras optimizer, such as `clipnorm`.

    Returns:
        A Keras optimizer, or in a graph of TensorFlow 1 a `tf.compat.v1.train.Optimizer`.

    Raises:
        TypeError: `kwargs` in a graph of TensorFlow 1.

    Example:

    >>> table = tf.Variable([[3., 4.], [6., 8.]])
    >>> optimizer = ge.optimizers.Lamb(0.1)
    >>> gradient = tf.IndexedSlices(tf.constant([[1., 0.]]), tf.constant([1]))
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> table.numpy().round(3).tolist()
    [[3.0, 4.0], [5.0, 8.0]]
    """
    return make_own(
        KerasLamb,
        LambV1,
        skip_nonfinite,
        stochastic_rounding_seed,
        learning_rate=learning_rate,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        weight_decay=weight_decay,
        name=name,
        **kwargs,
    )
