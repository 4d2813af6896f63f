"""`AttentionGRU`: the recurrent layer of DIEN."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.arguments import Layer


@keras.utils.register_keras_serializable(package="group_embedding")
class AttentionGRU(Layer):
    """A GRU whose update gate attention may scale: equations 2 to 5, and 13 to 16 of
    https://arxiv.org/abs/1809.03672.

    `u = sigmoid(W_u x + U_u h + b_u)`, `r = sigmoid(W_r x + U_r h + b_r)`,
    `c = tanh(W_c x + r * (U_c h) + b_c)`, `u = a * u` with attention a, `h = (1 - u) * h + u * c`.
    The steps are unrolled.

    Example:

    >>> states = ge.models.AttentionGRU(8)(tf.ones([2, 5, 4]), tf.ones([2, 5], tf.bool))
    >>> states.shape
    TensorShape([2, 5, 8])

    Args:
      units: how long a state is.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.

    Returns:
      Called on vectors `[batch, length, dim]`, their mask `[batch, length]` and, or not, attention
      `[batch, length]`: the states `[batch, length, units]`. Where the mask is False, the state
      stays as it was, so that the last state is that of the last vector.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape: Any, *_: Any) -> None:
        shapes = {"kernel": (input_shape[-1], 3 * self.units), "bias": (3 * self.units,)}
        self.kernel = self.add_weight(name="kernel", shape=shapes["kernel"])
        self.recurrent = self.add_weight(
            name="recurrent", shape=(self.units, 3 * self.units), initializer="orthogonal"
        )
        self.bias = self.add_weight(name="bias", shape=shapes["bias"], initializer="zeros")
        self.built = True

    def call(self, x: Any, mask: Any, attention: Any = None) -> Any:
        of_inputs = tf.unstack(tf.matmul(x, self.kernel) + self.bias, axis=1)
        steps = [None] * len(of_inputs)
        if attention is not None:
            steps = tf.unstack(attention[..., None], axis=1)
        state = tf.zeros_like(of_inputs[0][:, : self.units])
        states = []
        for of_input, scale, is_here in zip(of_inputs, steps, tf.unstack(mask, axis=1)):
            update, reset, new = tf.split(of_input, 3, axis=-1)
            of_state = tf.split(tf.matmul(state, self.recurrent), 3, axis=-1)
            update = tf.sigmoid(update + of_state[0])
            reset = tf.sigmoid(reset + of_state[1])
            new = tf.tanh(new + reset * of_state[2])
            update = update if scale is None else scale * update
            state = tf.where(is_here[:, None], (1 - update) * state + update * new, state)
            states.append(state)
        return tf.stack(states, axis=1)
