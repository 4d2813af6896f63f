"""`MLP` and `Dice`: dense layers one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import keras, policy_of
from group_embedding.recommender.zoo.arguments import Layer


@keras.utils.register_keras_serializable(package="group_embedding")
class Dice(Layer):
    """The activation of Deep Interest Network, equation 3 of https://arxiv.org/abs/1706.06978.

    `p * x + (1 - p) * alpha * x` with `p = sigmoid(x, normalised over the batch)` and a trained
    alpha for each unit.

    Example:

    >>> ge.models.Dice()(tf.zeros([2, 3])).shape
    TensorShape([2, 3])
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.normalise = keras.layers.BatchNormalization(
            center=False, scale=False, epsilon=1e-8, dtype=policy_of(self)
        )

    def build(self, input_shape: Any) -> None:
        self.normalise.build(input_shape)
        self.alpha = self.add_weight(name="alpha", shape=(input_shape[-1],), initializer="zeros")
        self.built = True

    def call(self, x: Any, training: Any = None) -> Any:
        p = tf.sigmoid(self.normalise(x, training=training))
        return p * x + (1 - p) * self.alpha * x


@keras.utils.register_keras_serializable(package="group_embedding")
class MLP(Layer):
    """Dense layers, each with an activation and dropout.

    Example:

    >>> ge.models.MLP([8, 4])(tf.zeros([2, 3])).shape
    TensorShape([2, 4])

    Args:
      units: the number of units of each layer.
      activation: the name of an activation of Keras, or "dice".
      last_activation: that of the last layer; None: the same, "linear": none.
      dropout: the share of outputs that are dropped in training, 0 to 1.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.
    """

    def __init__(
        self,
        units: Sequence[int],
        activation: str = "relu",
        last_activation: str | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = tuple(units)
        self.dense = [keras.layers.Dense(n, dtype=policy_of(self)) for n in self.units]
        names = [activation] * len(self.units)
        if names and last_activation is not None:
            names[-1] = last_activation
        self.activations = [self._activation(name) for name in names]
        self.drop = keras.layers.Dropout(dropout, dtype=policy_of(self))

    def _activation(self, name):
        if name == "dice":
            return Dice(dtype=policy_of(self))
        return keras.layers.Activation(name, dtype=policy_of(self))

    def build(self, input_shape: Any) -> None:
        *outer, width = tuple(input_shape)
        for dense, activation, units in zip(self.dense, self.activations, self.units):
            dense.build((*outer, width))
            activation.build((*outer, units))
            width = units
        self.built = True

    def call(self, x: Any, training: Any = None) -> Any:
        for dense, activation in zip(self.dense, self.activations):
            x = dense(x)
            x = activation(x, training=training) if isinstance(activation, Dice) else activation(x)
            x = self.drop(x, training=training)
        return x

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*tuple(input_shape)[:-1], self.units[-1] if self.units else input_shape[-1])
