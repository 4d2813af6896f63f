"""See `sok.tf`."""

from group_embedding.sok.tf.keras import optimizers

__all__ = ["optimizers"]
