"""Types of annotations for every folder of the package; `types.py` offers them to programs."""

from typing import TYPE_CHECKING, Any, Callable, Literal, Union

from group_embedding.config import Combiner, InvalidIds

if TYPE_CHECKING:
    import tensorflow as tf

# TensorFlow's names for two ways to cut a table; a table here is one piece, for which both are one.
PartitionStrategy = Literal["mod", "div"]

# What `tf.convert_to_tensor` takes.
TensorLike = Any
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
    "TensorLike",
]
