"""The words and types of the public API's annotations, for a program's own annotations.

>>> from group_embedding.types import Combiner
>>> def pooled(combiner: Combiner) -> str:
...     return f"features pooled by {combiner}"

A type checker takes TensorFlow's classes for anything while it has no stubs of TensorFlow. Names of
arguments, words such as combiners, numbers, options and this package's classes are checked anyway.
"""

from typing import TYPE_CHECKING, Union

from group_embedding.annotations import (
    Combiner,
    DTypeLike,
    Hyperparameter,
    Initializer,
    InvalidIds,
    Optimizer,
    PartitionStrategy,
    SparseLike,
    TensorLike,
)

if TYPE_CHECKING:
    import tensorflow as tf

    from group_embedding.ranks.sharding.sharded_table import ShardedTable
    from group_embedding.variables import EmbeddingVariable

# What is looked up.
Table = Union["EmbeddingVariable", "ShardedTable", "tf.Variable", "tf.Tensor"]

__all__ = [
    "Combiner",
    "DTypeLike",
    "Hyperparameter",
    "Initializer",
    "InvalidIds",
    "Optimizer",
    "PartitionStrategy",
    "SparseLike",
    "Table",
    "TensorLike",
]
