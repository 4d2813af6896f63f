"""SOK's optimizers. Both are lazy here: Adam changes only the rows that were looked up."""

from group_embedding.compat.sok.wrapper import Adam

LazyAdamOptimizer = Adam

__all__ = ["Adam", "LazyAdamOptimizer"]
