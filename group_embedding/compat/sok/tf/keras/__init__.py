"""See `sok.tf`."""

from group_embedding.compat.sok.tf.keras import optimizers

__all__ = ["optimizers"]
