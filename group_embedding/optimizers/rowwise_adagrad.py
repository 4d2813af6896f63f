"""`RowwiseAdagrad`: one number of state per row."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from group_embedding.annotations import Hyperparameter, Optimizer
from group_embedding.keras_compat import keras
from group_embedding.optimizers.own import OwnKeras, OwnV1, make_own, register
from group_embedding.optimizers.rules import RuleSpec


def _update(x, a, g, hyper):
    """Updates a whole variable. `a` of shape [rows, 1] takes the mean of each row."""
    square = g * g
    if a.shape != x.shape:
        square = tf.reduce_mean(square, axis=-1, keepdims=True)
    a += square
    return [x - hyper["learning_rate"] * g / (tf.sqrt(a) + hyper["epsilon"]), a]


@register("RowwiseAdagrad")
class KerasRowwiseAdagrad(OwnKeras, keras.optimizers.Adagrad):
    """See `RowwiseAdagrad`."""

    _ge_update_whole = staticmethod(_update)
    _ge_row_slots = ("accumulator",)

    @property
    def _ge_row_slot_start(self):
        return self.initial_accumulator_value

    def _ge_rule_spec(self):
        learning_rate = tf.cast(tf.convert_to_tensor(self.learning_rate), tf.float32)
        hyper = {"learning_rate": learning_rate, "epsilon": self.epsilon}
        starts = {"_accumulators": self.initial_accumulator_value}
        return RuleSpec("rowwise_adagrad", ("_accumulators",), hyper, starts)


class RowwiseAdagradV1(OwnV1, tf.compat.v1.train.AdagradOptimizer):
    """See `RowwiseAdagrad`."""

    _ge_update_whole = staticmethod(_update)
    _ge_row_slots = ("accumulator",)

    def __init__(self, learning_rate, initial_accumulator_value, epsilon, name):
        super().__init__(learning_rate, initial_accumulator_value, name=name)
        self._ge_epsilon = epsilon

    @property
    def _ge_row_slot_start(self):
        return self._initial_accumulator_value

    def _ge_rule_spec(self):
        hyper = {
            "learning_rate": tf.cast(self._learning_rate_tensor, tf.float32),
            "epsilon": self._ge_epsilon,
        }
        starts = {"accumulator": self._initial_accumulator_value}
        return RuleSpec("rowwise_adagrad", ("accumulator",), hyper, starts)


def RowwiseAdagrad(  # noqa: N802
    learning_rate: Hyperparameter = 0.001,
    initial_accumulator_value: float = 0.1,
    epsilon: float = 1e-7,
    name: str = "RowwiseAdagrad",
    *,
    skip_nonfinite: bool = False,
    stochastic_rounding_seed: int | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Adagrad with one accumulator per row, of the mean square of the row's gradient.

    Its state is a `dim`-th of Adagrad's. With a the accumulator of a row x and g its gradient:

        a <- a + mean(g^2);  x <- x - learning_rate g / (sqrt(a) + epsilon)

    All variables of shape [rows, dim] have accumulators of shape [rows, 1], others one per element.

    Args:
        learning_rate: a number, a schedule or a tensor.
        initial_accumulator_value: of the accumulators; positive in a graph of TensorFlow 1.
        epsilon: added to the root.
        name: of the optimizer.
        skip_nonfinite, stochastic_rounding_seed: see `wrap`.
        **kwargs: of the Keras optimizer, such as `weight_decay` or `clipnorm`.

    Returns:
        A Keras optimizer, or in a graph of TensorFlow 1 a `tf.compat.v1.train.Optimizer`.

    Raises:
        TypeError: `kwargs` in a graph of TensorFlow 1.

    Example:

    >>> table = tf.Variable(tf.zeros([3, 2]))
    >>> optimizer = ge.optimizers.RowwiseAdagrad(1.0, initial_accumulator_value=3.0)
    >>> gradient = tf.IndexedSlices(tf.constant([[1., 1.]]), tf.constant([2]))
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> table.numpy().tolist()
    [[0.0, 0.0], [0.0, 0.0], [-0.5, -0.5]]
    """
    return make_own(
        KerasRowwiseAdagrad,
        RowwiseAdagradV1,
        skip_nonfinite,
        stochastic_rounding_seed,
        learning_rate=learning_rate,
        initial_accumulator_value=initial_accumulator_value,
        epsilon=epsilon,
        name=name,
        **kwargs,
    )
