"""Where the tables of grouped columns come from: the one seam between columns and storage.

A table is created by `make_table`, filled from a checkpoint by `restore_table`, and handed to the
lookup by `as_table`. Here a table is the variable that the stock column would have made.
"""

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.ops.variables import PartitionedVariable

# Variables in parts: of v1 partitioners, and of parameter server strategies.
_PARTITIONED = (PartitionedVariable, ShardedVariable)
_MAX_FUSED_DIM = 4096  # of `group_embedding_lookup_sparse`


def make_table(shape, initializer, create):
    """Creates the variable of a table.

    Args:
      shape: `(num_rows, dim)` of the whole table.
      initializer: initializer of the whole table.
      create: `create(shape, initializer)` makes a variable as the stock column would: under its
        name, in its collections, tracked by its layer, trainable or not, cut by the partitioner
        of its scope.

    Returns:
      What `create` returned: a `tf.Variable`, or a `PartitionedVariable`.
    """
    return create(shape, initializer)


def restore_table(variable, checkpoint, tensor_name):
    """Makes `variable` start from a tensor of a checkpoint (`ckpt_to_load_from`)."""
    source = list(variable) if isinstance(variable, _PARTITIONED) else variable
    tf.compat.v1.train.init_from_checkpoint(checkpoint, {tensor_name: source})


def table_shape(variable):
    """`(num_rows, dim)` of the whole table that is stored in `variable`."""
    return tuple(variable.get_shape())


def as_table(variable):
    """Returns what a lookup takes for the table that is stored in `variable`."""
    if isinstance(variable, _PARTITIONED) and len(list(variable)) == 1:
        return list(variable)[0]
    return variable


def can_be_fused(table):
    """False for tables that stock ops look up: cut in several parts, or very wide."""
    return not isinstance(table, _PARTITIONED) and int(table.shape[1]) <= _MAX_FUSED_DIM
