"""`RowwiseAdam`: Adam with one second moment per row."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from group_embedding.annotations import Hyperparameter, Optimizer
from group_embedding.keras_compat import keras
from group_embedding.optimizers.own import OwnKeras, OwnV1, make_own, register
from group_embedding.optimizers.rules import RuleSpec, keras_adam, v1_adam


def _update(x, m, v, g, hyper):
    """Updates a whole variable. `v` of shape [rows, 1] takes the mean of each row."""
    square = g * g
    if v.shape != x.shape:
        square = tf.reduce_mean(square, axis=-1, keepdims=True)
    m = hyper["beta_1"] * m + (1 - hyper["beta_1"]) * g
    v = hyper["beta_2"] * v + (1 - hyper["beta_2"]) * square
    rate = hyper["learning_rate"] * tf.sqrt(1 - hyper["beta_2_power"])
    rate /= 1 - hyper["beta_1_power"]
    return [x - rate * m / (tf.sqrt(v) + hyper["epsilon"]), m, v]


@register("RowwiseAdam")
class KerasRowwiseAdam(OwnKeras, keras.optimizers.Adam):
    """See `RowwiseAdam`."""

    _ge_update_whole = staticmethod(_update)
    _ge_row_slots = ("v", "velocity")  # its names in Keras 2 and 3

    def __init__(self, learning_rate, **kwargs):
        super().__init__(learning_rate, amsgrad=False, **kwargs)

    def _ge_rule_spec(self):
        return RuleSpec("rowwise_adam", ("_momentums", "_velocities"), keras_adam(self).hyper)


class RowwiseAdamV1(OwnV1, tf.compat.v1.train.AdamOptimizer):
    """See `RowwiseAdam`."""

    _ge_update_whole = staticmethod(_update)
    _ge_row_slots = ("v",)

    def __init__(self, learning_rate, beta_1, beta_2, epsilon, name):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name)

    def _ge_rule_spec(self):
        hyper = {name: tf.cast(value, tf.float32) for name, value in v1_adam(self).hyper.items()}
        return RuleSpec("rowwise_adam", ("m", "v"), hyper)


def RowwiseAdam(  # noqa: N802
    learning_rate: Hyperparameter = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    name: str = "RowwiseAdam",
    *,
    skip_nonfinite: bool = False,
    stochastic_rounding_seed: int | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Adam whose second moment is one number per row, as FBGEMM's partial row-wise Adam.

    Its state is little more than half of Adam's. Moments move only for rows that were looked up.
    With m and v those of a row x, g its gradient and t the step:

        m <- beta_1 m + (1 - beta_1) g;  v <- beta_2 v + (1 - beta_2) mean(g^2)
        x <- x - learning_rate sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon)

    All variables of shape [rows, dim] have a v of shape [rows, 1], others one per element.

    Args:
        learning_rate: a number, a schedule or a tensor.
        beta_1, beta_2, epsilon: as in Adam.
        name: of the optimizer.
        skip_nonfinite, stochastic_rounding_seed: see `wrap`.
        **kwargs: of the Keras optimizer, such as `weight_decay` or `clipnorm`.

    Returns:
        A Keras optimizer, or in a graph of TensorFlow 1 a `tf.compat.v1.train.Optimizer`.

    Raises:
        TypeError: `kwargs` in a graph of TensorFlow 1.

    Example:

    >>> table = tf.Variable(tf.zeros([3, 2]))
    >>> optimizer = ge.optimizers.RowwiseAdam(0.5)
    >>> gradient = tf.IndexedSlices(tf.constant([[3., 3.]]), tf.constant([2]))
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> table.numpy().round(3).tolist()
    [[0.0, 0.0], [0.0, 0.0], [-0.5, -0.5]]
    """
    return make_own(
        KerasRowwiseAdam,
        RowwiseAdamV1,
        skip_nonfinite,
        stochastic_rounding_seed,
        learning_rate=learning_rate,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        name=name,
        **kwargs,
    )
