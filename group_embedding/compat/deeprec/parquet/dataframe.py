"""The columns of a table of samples: their types, and their values as sparse tensors."""

import dataclasses
from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class _Field:
    """A column of a table of samples.

    Attributes:
      name: the column's.
      dtype: of its numbers or strings; None: as the file says.
      ragged_rank: 0 for one value per sample, 1 for a list, 2 for a list of lists, and so on; None:
        as the file says.
      shape: of the values of one sample, where its list always has as many; None: lists are ragged.

    Raises:
      ValueError: `shape` has unknown dimensions, or lists of lists.
    """

    name: str
    dtype: Any = None
    ragged_rank: Optional[int] = None
    shape: Any = None

    def __post_init__(self):
        if self.dtype is not None:
            object.__setattr__(self, "dtype", tf.as_dtype(self.dtype))
        if self.shape is None:
            return
        shape = tf.TensorShape(self.shape)
        if not shape.is_fully_defined():
            raise ValueError(f"field '{self.name}': expected a fully defined shape, got {shape}")
        if self.ragged_rank not in (None, 1):
            raise ValueError(
                f"field '{self.name}': expected ragged_rank 1 beside a shape, got "
                f"{self.ragged_rank}"
            )
        object.__setattr__(self, "shape", shape)

    @property
    def incomplete(self):
        """True if only the file can say what the column holds."""
        return self.dtype is None or self.ragged_rank is None


class DataFrame:
    """A table of samples; `DataFrame.Field` describes a column."""

    Field = _Field

    @classmethod
    def to_sparse(cls, features: Any) -> Any:
        """Makes SparseTensors of RaggedTensors.

        Args:
            features: a Tensor, a RaggedTensor, or a dict of those.

        Returns:
            `features`, each RaggedTensor as a SparseTensor.
        """
        if isinstance(features, dict):
            return {name: cls.to_sparse(value) for name, value in features.items()}
        return features.to_sparse() if isinstance(features, tf.RaggedTensor) else features

    @classmethod
    def unbatch_and_to_sparse(cls, features: Any) -> Any:
        """Takes the only sample out of batches of one, RaggedTensors as SparseTensors.

        Args:
            features: a Tensor, a RaggedTensor, or a dict of those, of one sample each.

        Returns:
            Its features: Tensors as they are, SparseTensors without the dimension of the batch.
        """
        if isinstance(features, dict):
            return {name: cls.unbatch_and_to_sparse(value) for name, value in features.items()}
        if not isinstance(features, tf.RaggedTensor):
            return features
        sparse = features.to_sparse()
        return tf.sparse.reshape(sparse, sparse.dense_shape[1:])


def to_sparse(
    num_parallel_calls: Optional[int] = None,
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """A function for `dataset.apply` that makes SparseTensors of the RaggedTensors of a batch."""
    return lambda dataset: dataset.map(DataFrame.to_sparse, num_parallel_calls)


def unbatch_and_to_sparse(
    num_parallel_calls: Optional[int] = None,
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """A function for `dataset.apply` that takes the samples out of batches of one."""
    return lambda dataset: dataset.map(DataFrame.unbatch_and_to_sparse, num_parallel_calls)
