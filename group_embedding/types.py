"""The words and types of the public API's annotations, for a program's own annotations.

>>> from group_embedding.types import Combiner
>>> def pooled(combiner: Combiner) -> str:
...     return f"features pooled by {combiner}"

A type checker takes TensorFlow's classes for anything while it has no stubs of TensorFlow. Names of
arguments, words such as combiners, numbers, options and this package's classes are checked anyway.
"""

from typing import TYPE_CHECKING, Any, Callable, Literal, Union

from group_embedding.config import Combiner, InvalidIds

if TYPE_CHECKING:
    import tensorflow as tf

    from group_embedding.ranks.sharding.sharded_table import ShardedTable
    from group_embedding.variables import EmbeddingVariable

# TensorFlow's names for two ways to cut a table; a table here is one piece, for which both are one.
PartitionStrategy = Literal["mod", "div"]

# What `tf.convert_to_tensor` takes.
TensorLike = Any
# What is looked up.
Table = Union["EmbeddingVariable", "ShardedTable", "tf.Variable", "tf.Tensor"]
# Ids, or weights, of one lookup of many samples.
SparseLike = Union["tf.SparseTensor", "tf.RaggedTensor"]
# A `tf.DType`, or its name.
DTypeLike = Union["tf.DType", str]
# An optimizer of TensorFlow 1, of Keras 2 (also a legacy one) or of Keras 3.
Optimizer = Any
# A Keras initializer, its name, one of TensorFlow 1, or a function of a shape and a dtype.
Initializer = Any
# A number, or what an optimizer takes for one: a tensor, a schedule, a function without arguments.
Hyperparameter = Union[float, "tf.Tensor", Callable[..., Any]]

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
