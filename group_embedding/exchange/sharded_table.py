"""Tables whose rows are spread over the ranks: row r lies on rank `r % num_ranks`, as its local row
`r // num_ranks`."""

import dataclasses
import functools
import inspect
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable
from tensorflow.python.trackable.base import VARIABLE_VALUE_KEY

from group_embedding.exchange.active import current
from group_embedding.exchange.interface import Exchange

_MARK = "_group_embedding_shard"
_when_made = []


@dataclasses.dataclass(frozen=True, eq=False)
class ShardedTable:
    """A table of shape [num_rows, dim] of which this rank holds the rows rank, rank + num_ranks...

    A param of `group_embedding_lookup_sparse`. Also describes the optimizer slots of a table.
    """

    variable: Any  # tf.Variable [num_local_rows, dim]
    name: str  # under which the whole table is saved
    num_rows: int
    dim: int
    exchange: Exchange

    @property
    def shape(self):
        return tf.TensorShape([self.num_rows, self.dim])

    @property
    def dtype(self):
        return self.variable.dtype.base_dtype


def num_local_rows(num_rows, rank, num_ranks):
    return (num_rows - rank + num_ranks - 1) // num_ranks


def make_table(shape, initializer, create):
    """Makes the variable of a table: whole with one rank, else this rank's rows.

    The rows start as those of the whole table would in one process: the whole table is drawn, with
    the same seed, and this rank's rows are kept. For that moment it takes the memory of the whole.

    Args:
        shape: `(num_rows, dim)` of the whole table.
        initializer: initializer of the whole table: a callable of shape and dtype, or a tensor.
        create: `create(shape, initializer)` makes and returns the variable.

    Returns:
        What `create` returned. `sharded_table` knows it from now on.

    Raises:
        ValueError: `create` cut a sharded table into several parts.
    """
    exchange = current()
    if exchange.num_ranks == 1:
        return create(shape, initializer)
    num_rows, dim = (int(size) for size in shape)
    local_rows = num_local_rows(num_rows, exchange.rank, exchange.num_ranks)
    variable = create((local_rows, dim), _RowsOfRank(initializer, (num_rows, dim), exchange))
    part = _only_part(variable)
    mark_shard(part, (num_rows, dim), exchange)
    for call in _when_made:
        call()
    return variable


def when_table_is_made(call):
    """Has `call()` called, in the table's graph, each time that a sharded table has been made."""
    if call not in _when_made:
        _when_made.append(call)


def mark_shard(variable, shape, exchange):
    """Declares that `variable` holds this rank's rows of a table of `shape`.

    From now on object-based checkpoints (`tf.train.Checkpoint`, `save_weights`) hold the whole one.
    """
    setattr(variable, _MARK, ShardedTable(variable, _saved_name(variable), *shape, exchange))
    if isinstance(variable, BaseResourceVariable) and not isinstance(variable, _SavedWhole):
        variable.__class__ = _saved_whole(type(variable))


def sharded_table(variable):
    """The ShardedTable that `variable` holds the local rows of, or None.

    Takes a tf.Variable, a keras.Variable, a PartitionedVariable of one part, or a ShardedTable.
    """
    if isinstance(variable, ShardedTable):
        return variable
    if isinstance(variable, tf.Tensor):
        return None
    if not isinstance(variable, tf.Variable):
        if isinstance(getattr(variable, "value", None), tf.Variable):  # of Keras 3
            variable = variable.value
        elif hasattr(variable, "as_tensor") and len(list(variable)) == 1:
            variable = next(iter(variable))
    return getattr(variable, _MARK, None)


def table_shape(variable):
    """The shape of the whole table that a variable holds, be it sharded or not."""
    shard = sharded_table(variable)
    return tf.TensorShape(variable.shape) if shard is None else shard.shape


def gather_rows(variable):
    """The whole table as a tensor. Every rank must call it."""
    shard = sharded_table(variable)
    if shard is None:
        return tf.convert_to_tensor(variable)
    num_ranks = shard.exchange.num_ranks
    (rows,) = shard.exchange.allgather(
        [tf.convert_to_tensor(shard.variable)], f"gather_{_flat(shard.name)}"
    )
    first = [0]  # of each rank in `rows`
    for rank in range(num_ranks - 1):
        first.append(first[-1] + num_local_rows(shard.num_rows, rank, num_ranks))
    row = tf.range(shard.num_rows, dtype=tf.int64)
    return tf.gather(
        rows, tf.gather(tf.constant(first, tf.int64), row % num_ranks) + row // num_ranks
    )


def rows_of_rank(whole, exchange):
    """This rank's rows of a whole table."""
    return whole[exchange.rank :: exchange.num_ranks]


def assign_rows(variable, whole):
    """Sets a variable from the whole table. No rank waits for another."""
    shard = sharded_table(variable)
    variable = variable if shard is None else shard.variable
    return variable.assign(whole if shard is None else rows_of_rank(whole, shard.exchange))


def restore_table(variable, checkpoint, tensor_name):
    """Makes the shard `variable` start from the whole table `tensor_name` of a checkpoint (a path,
    or a folder, of which the latest is taken)."""
    shard = sharded_table(variable)
    path = tf.train.latest_checkpoint(checkpoint) or checkpoint
    shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    found = shapes.get(tensor_name)
    if found != shard.shape.as_list():
        raise ValueError(
            f"table '{shard.name}': expected a tensor {tensor_name!r} of shape {shard.shape} in "
            f"{path}, got {found or sorted(shapes)}"
        )
    with tf.device("/CPU:0"):
        whole = tf.raw_ops.RestoreV2(
            prefix=path, tensor_names=[tensor_name], shape_and_slices=[""], dtypes=[shard.dtype]
        )[0]
        rows = tf.ensure_shape(rows_of_rank(whole, shard.exchange), shard.variable.shape)
    if tf.executing_eagerly() or isinstance(tf.compat.v1.get_default_graph(), FuncGraph):
        shard.variable.assign(rows)
    else:
        shard.variable._initializer_op = shard.variable.assign(rows).op
        shard.variable._initial_value = rows


class _SavedWhole:
    """Of a variable with the rows of one rank: object-based checkpoints see the whole table.

    Every rank must save, as all give their rows: ranks other than 0 to a path of their own.
    Restoring needs no other rank; the variable must exist by then.
    """

    def _serialize_to_tensors(self):
        return {VARIABLE_VALUE_KEY: gather_rows(self)}

    def _restore_from_tensors(self, restored_tensors):
        return assign_rows(self, restored_tensors[VARIABLE_VALUE_KEY])


@functools.cache
def _saved_whole(stock):
    return type(stock.__name__, (_SavedWhole, stock), {"__module__": stock.__module__})


class _RowsOfRank:
    """Initializer of one rank's rows out of the initializer of the whole table."""

    def __init__(self, initializer, shape, exchange):
        self._initializer = initializer() if inspect.isclass(initializer) else initializer
        self._shape = shape
        self._exchange = exchange

    def __call__(self, shape, dtype=None, partition_info=None, **kwargs):
        del shape, partition_info, kwargs  # of the local rows: the whole table is drawn
        if not callable(self._initializer):
            whole = tf.cast(tf.convert_to_tensor(self._initializer), dtype)
        elif dtype is None:
            whole = self._initializer(self._shape)
        else:
            whole = self._initializer(self._shape, dtype=dtype)
        return rows_of_rank(whole, self._exchange)


def _only_part(variable):
    if isinstance(variable, tf.Variable):
        return variable
    if isinstance(getattr(variable, "value", None), tf.Variable):
        return variable.value
    parts = list(variable)
    if len(parts) != 1:
        raise ValueError(
            f"table '{variable.name}': expected a variable in one piece, as its rows are already "
            f"spread over the ranks, got {len(parts)} parts; make it without a partitioner"
        )
    return parts[0]


def _saved_name(variable):
    slice_info = getattr(variable, "_save_slice_info", None)
    return slice_info.full_name if slice_info else variable.name.partition(":")[0]


def _flat(name):
    return name.replace("/", "_")
