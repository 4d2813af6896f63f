"""Where the tables of grouped columns come from: the one seam between columns and storage.

A table is created by `make_table`, filled from a checkpoint by `restore_table`, and handed to the
lookup by `as_table`. A table is the variable that the stock column would have made, or, where the
tables are sharded over ranks, one like it with the rows of this rank.
"""

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.ops.variables import PartitionedVariable

from group_embedding import exchange

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
    return exchange.make_table(shape, initializer, create)


def restore_table(variable, checkpoint, tensor_name):
    """Makes `variable` start from a tensor of a checkpoint (`ckpt_to_load_from`)."""
    if exchange.sharded_table(variable) is not None:
        exchange.restore_table(variable, checkpoint, tensor_name)
        return
    source = list(variable) if isinstance(variable, _PARTITIONED) else variable
    tf.compat.v1.train.init_from_checkpoint(checkpoint, {tensor_name: source})


def table_shape(variable):
    """`(num_rows, dim)` of the whole table that is stored in `variable`."""
    return tuple(exchange.table_shape(variable))


def as_table(variable):
    """Returns what a lookup takes for the table that is stored in `variable`."""
    shard = exchange.sharded_table(variable)
    if shard is not None:
        return shard
    if isinstance(variable, _PARTITIONED) and len(list(variable)) == 1:
        return list(variable)[0]
    return variable


def can_be_fused(table):
    """False for tables that stock ops look up: cut in several parts, or very wide."""
    return not isinstance(table, _PARTITIONED) and int(table.shape[1]) <= _MAX_FUSED_DIM
