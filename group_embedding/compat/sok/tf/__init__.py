"""`sok.tf.keras.optimizers`, where SOK version 1 has more optimizers."""

from group_embedding.compat.sok.tf import keras

__all__ = ["keras"]
