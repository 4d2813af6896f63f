"""Both are lazy here: of a table, Adam moves the rows that were looked up."""

from group_embedding.sok.wrapper import Adam

LazyAdamOptimizer = Adam

__all__ = ["Adam", "LazyAdamOptimizer"]
