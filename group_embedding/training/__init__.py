"""Training steps whose dense part is one XLA program."""

from group_embedding.training.compiled_step import make_step
from group_embedding.training.model import Model

__all__ = ["Model", "make_step"]
