"""`PositionEmbedding`: a trained vector for each position of a sequence."""

from __future__ import annotations

from typing import Any

from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.arguments import Layer


@keras.utils.register_keras_serializable(package="group_embedding")
class PositionEmbedding(Layer):
    """Adds a trained vector to each position.

    Example:

    >>> ge.models.PositionEmbedding()(tf.zeros([2, 5, 4])).shape
    TensorShape([2, 5, 4])

    Returns:
      Called on vectors `[batch, length, dim]`: vectors of the same shape.
    """

    def build(self, input_shape: Any) -> None:
        self.positions = self.add_weight(
            name="positions", shape=tuple(input_shape)[1:], initializer="uniform"
        )
        self.built = True

    def call(self, x: Any) -> Any:
        return x + self.positions

    def compute_output_shape(self, input_shape: Any) -> Any:
        return tuple(input_shape)
