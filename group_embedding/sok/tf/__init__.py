"""`sok.tf.keras.optimizers`, where SOK version 1 has more optimizers."""

from group_embedding.sok.tf import keras

__all__ = ["keras"]
