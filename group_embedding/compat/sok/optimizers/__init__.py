"""SOK version 1's optimizers."""

from group_embedding.compat.sok.optimizers import utils
from group_embedding.compat.sok.wrapper import Adam

__all__ = ["Adam", "utils"]
