"""Makes the tables of grouped columns: the only connection between columns and storage.

`make_table` creates a table, `restore_table` fills it from a checkpoint, and `as_table` passes it
to the lookup. A table is the variable that the stock column would have made or, if tables are
sharded over ranks, a variable with the rows of this rank.
"""

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.ops.variables import PartitionedVariable

from group_embedding.ranks.sharding.make_sharded_table import make_table, restore_table
from group_embedding.ranks.sharding.sharded_table import sharded_table, table_shape
from group_embedding.variables import EmbeddingVariable, to_keyed_options
from group_embedding.variables.get_variable import keyed_variables

# Variables in parts: of v1 partitioners, and of parameter server strategies.
_PARTITIONED = (PartitionedVariable, ShardedVariable)
_MAX_FUSED_DIM = 4096  # of `group_embedding_lookup_sparse`


class Keys(int):
    """The `num_buckets` of a column whose values are keys: more than any table has rows. It takes
    the column to where its table is made."""

    MOST = 2**63 - 1

    def __new__(cls, column):
        keys = super().__new__(cls, cls.MOST)
        keys.column = column
        return keys

    def __lt__(self, other):
        """Whoever makes a shape compares each of its dimensions with 0."""
        self.refuse("linear_model or another that has a weight for each value")

    def refuse(self, what):
        raise ValueError(
            f"column '{self.column.name}': expected embedding_column, or another that has a table "
            f"of keys, got {what}, while any number may be a key; give it "
            "embedding_column(..., dimension=1) instead"
        )


def make_column_table(shape, initializer, create, placement):
    """Creates the variable of a table.

    Args:
      shape: `(num_rows, dim)` of the whole table; with Keys for num_rows, it is an
        EmbeddingVariable.
      initializer: initializer of the whole table.
      create: `create(shape, initializer)` makes a variable as the stock column would: under its
        name, in its collections, tracked by its layer, trainable or not, cut by the partitioner
        of its scope.
      placement: where its rows are, over several ranks.

    Returns:
      What `create` returned: a `tf.Variable`, or a `PartitionedVariable`.
    """
    num_rows, dim = shape
    if isinstance(num_rows, Keys):
        return _make_keyed_table(num_rows.column, dim, initializer, create, placement)
    return make_table(shape, initializer, create, placement)


def _make_keyed_table(column, dim, initializer, create, placement):
    own = to_keyed_options(column.key, column.ev_option).initializer
    with keyed_variables(
        embedding_dim=dim,
        initializer=initializer if own is None else own,
        ev_option=column.ev_option,
        placement=placement,
    ):
        return create((0, dim), tf.compat.v1.zeros_initializer())


def restore_column_table(variable, checkpoint, tensor_name):
    """Makes `variable` start from a tensor of a checkpoint (`ckpt_to_load_from`)."""
    if keyed_variable(variable) is not None:
        raise ValueError(
            f"table '{variable.name}': expected ckpt_to_load_from=None, as its rows are found by "
            f"key, got {checkpoint!r}; give categorical_column_with_embedding an "
            "ev_option=EmbeddingVariableOption(ckpt=CheckpointOption(...))"
        )
    if sharded_table(variable) is not None:
        restore_table(variable, checkpoint, tensor_name)
        return
    source = list(variable) if isinstance(variable, _PARTITIONED) else variable
    tf.compat.v1.train.init_from_checkpoint(checkpoint, {tensor_name: source})


def column_table_shape(variable):
    """`(num_rows, dim)` of the whole table that is stored in `variable`."""
    if keyed_variable(variable) is not None:
        return (Keys.MOST, variable.shape[1])
    return tuple(table_shape(variable))


def keyed_variable(variable):
    """The EmbeddingVariable that a variable is, or that mixed precision wraps; else None."""
    variable = getattr(variable, "_variable", variable)
    return variable if isinstance(variable, EmbeddingVariable) else None


def as_table(variable):
    """Returns the argument of a lookup for the table that is stored in `variable`."""
    keyed = keyed_variable(variable)
    if keyed is not None:
        return keyed
    shard = sharded_table(variable)
    if shard is not None:
        return shard
    if isinstance(variable, _PARTITIONED) and len(list(variable)) == 1:
        return list(variable)[0]
    return variable


def can_be_fused(table):
    """False for tables that stock ops look up: cut in several parts, or very wide."""
    return not isinstance(table, _PARTITIONED) and int(table.shape[1]) <= _MAX_FUSED_DIM
