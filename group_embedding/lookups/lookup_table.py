"""Converts the tables that a user passes into the Table that the ops take."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.ops.variables import PartitionedVariable

from group_embedding.config import TABLE_DTYPES, check_max_norm
from group_embedding.keras_compat import in_frozen_layer
from group_embedding.ranks.sharding.sharded_table import ShardedTable, exchange_of, sharded_table
from group_embedding.variables import EmbeddingVariable
from group_embedding.variables.key_types import are_keys
from group_embedding.variables.over_replicas import KeyedReplicas


class Reference(NamedTuple):
    """An object that is equal to itself alone: variables compare by value."""

    object: Any

    def __eq__(self, other):
        return self.object is other.object

    def __hash__(self):
        return id(self.object)


class Table(NamedTuple):
    """One table of a group. Two are the same if they read one object with one max_norm."""

    source: Reference  # to a tf.Variable, a tensor, a ShardedTable or an EmbeddingVariable
    name: str
    dtype: tf.DType
    dim: int
    max_norm: float  # 0: rows are read as they are
    learns: bool = True  # of a keyed table: whether a lookup that is differentiated inserts keys

    @property
    def keyed(self):
        """The EmbeddingVariable, if it is one, whose rows are found by key."""
        source = self.source.object
        return source if isinstance(source, EmbeddingVariable) else None

    @property
    def exchange(self):
        """The Exchange over whose ranks its rows are spread, or None: this process has them all."""
        return exchange_of(self.source.object)

    def of_this_rank(self):
        """This rank's shard of a table that is sharded over ranks, of its dim or fewer columns."""
        source = self.source.object
        variable = source.variable if isinstance(source, ShardedTable) else source
        return self._replace(source=Reference(variable), dim=int(variable.shape[1]))

    def with_source(self, source, dtype):
        """The table with its rows, or some of them, in another tensor or variable."""
        return self._replace(source=Reference(source), dtype=dtype)

    @property
    def device_type(self):
        """'CPU' or 'GPU': where TensorFlow puts the ops that look it up."""
        source = self.source.object
        variable = source.variable if isinstance(source, ShardedTable) else source
        device = tf.DeviceSpec.from_string(getattr(variable, "device", "") or "")
        known = device.device_type
        return known or ("GPU" if tf.config.list_physical_devices("GPU") else "CPU")

    def num_rows(self):
        """The number of rows of a by-row table: an int, or an int64 scalar tensor where TensorFlow
        does not know it beforehand."""
        source = self.source.object
        known = tf.TensorShape(source.shape)[0]
        return tf.shape(source, out_type=tf.int64)[0] if known is None else known

    def check_ids(self, feature_name, dtype):
        """Refuses ids of a type that has values which are no keys of the table."""
        if self.keyed is None or are_keys(dtype, self.keyed.key_dtype):
            return
        raise TypeError(
            f"feature '{feature_name}': expected ids of {self.keyed.key_dtype.name}, the key_dtype "
            f"of table '{self.name}', or of a type whose values all are of it, got {dtype.name}"
        )

    def tensor(self):
        """The op's input: the handle of a resource variable, which is then read in place, or the
        rows themselves. For a keyed table, the handle of its placeholder."""
        source = self.source.object
        is_variable = resource_variable_ops.is_resource_variable(source)
        # Outside its replicas a mirrored variable has no handle.
        if not is_variable or tf.distribute.in_cross_replica_context():
            return tf.convert_to_tensor(source)
        resource_variable_ops.variable_accessed(source)
        return source.handle


def make_table(param, max_norm, index):
    """The table for `params[index]`.

    Raises:
        TypeError: `param` is a PartitionedVariable of several parts.
        ValueError: it is not of shape [rows, dim], not of a floating type that tables have, or
            max_norm is not positive.
    """
    if isinstance(param, PartitionedVariable):
        param = _only_part(param)
    param = tf_variable(param)
    # The variable of a shard has the local rows alone, while ids name the rows of the whole table.
    param = sharded_table(param) or param
    has_type = hasattr(param, "dtype") and hasattr(param, "shape")
    if isinstance(param, np.ndarray) or not has_type:
        param = tf.convert_to_tensor(param)
    _check_no_ids(param, index)
    name = _name_of(param, index)
    if isinstance(param, KeyedReplicas):
        raise RuntimeError(
            f"table '{name}': expected to be looked up in strategy.run, as its keys are spread "
            "over the replicas of a strategy, got a call outside"
        )
    shape = tf.TensorShape(param.shape)
    if shape.rank != 2 or shape[1] is None:
        raise ValueError(
            f"table '{name}': expected shape [rows, dim] with a known dim, got {shape}"
        )
    if not 1 <= shape[1] <= 4096:
        raise ValueError(f"table '{name}': expected a dim from 1 to 4096, got {shape[1]}")
    dtype = tf.as_dtype(param.dtype).base_dtype
    if dtype.name not in TABLE_DTYPES:
        raise ValueError(f"table '{name}': expected {', '.join(TABLE_DTYPES)}, got {dtype.name}")
    max_norm = check_max_norm(f"table '{name}'", max_norm)
    learns = not isinstance(param, EmbeddingVariable) or (param.learns and not in_frozen_layer())
    return Table(Reference(param), name, dtype, int(shape[1]), max_norm or 0.0, learns)


def _check_no_ids(param, index):
    is_ids = isinstance(param, (tf.SparseTensor, tf.RaggedTensor))
    if is_ids or tf.as_dtype(param.dtype).is_integer:
        raise TypeError(
            f"params[{index}]: expected a table of floating numbers, got ids, "
            f"{type(param).__name__} of {tf.as_dtype(param.dtype).name}; the list of tables is the "
            "first argument, and the list of ids the second"
        )


def tf_variable(param):
    """The `tf.Variable` of a Keras 3 variable: itself, not its value as a policy casts it. In a
    replica, of a table of keys over replicas, its own."""
    variable = variable_of_all(param)
    return variable.of_this_replica() if isinstance(variable, KeyedReplicas) else variable


def variable_of_all(param):
    """The variable of all replicas, also inside of a replica."""
    inner = None if isinstance(param, tf.Variable) else getattr(param, "_value", None)
    return inner if isinstance(inner, tf.Variable) else param


def _only_part(variable):
    parts = list(variable)
    if len(parts) != 1:
        raise TypeError(
            f"table '{variable.name}': expected a variable in one piece, got a PartitionedVariable "
            f"of {len(parts)} parts; make it without a partitioner"
        )
    return parts[0]


def _name_of(param, index):
    """The user's own name for it; an eager tensor has none."""
    if isinstance(param, (tf.Variable, ShardedTable)) or not tf.executing_eagerly():
        return param.name.partition(":")[0]
    return f"params[{index}]"
