"""`ExpertGate`: a weighted sum of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import keras, policy_of
from group_embedding.recommender.zoo.arguments import Layer


@keras.utils.register_keras_serializable(package="group_embedding")
class ExpertGate(Layer):
    """The sum of the outputs of experts, weighted by a softmax of the input: equation 6 of MMoE,
    https://doi.org/10.1145/3219819.3220007.

    Example:

    >>> experts = [tf.zeros([2, 4]), tf.ones([2, 4])]
    >>> ge.models.ExpertGate(2)(tf.zeros([2, 3]), experts).numpy().tolist()
    [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]]

    Args:
      num_experts: how many outputs it weighs.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.

    Returns:
      Called on an input `[batch, width]` and a list of outputs `[batch, units]`: `[batch, units]`.
    """

    def __init__(self, num_experts: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gate = keras.layers.Dense(
            num_experts, "softmax", use_bias=False, dtype=policy_of(self)
        )

    def call(self, x: Any, experts: Sequence[Any]) -> Any:
        shares = self.gate(x)
        return tf.einsum("be,beu->bu", shares, tf.stack(list(experts), axis=1))
