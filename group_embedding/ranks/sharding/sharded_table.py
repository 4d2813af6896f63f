"""Tables whose rows are on the ranks that their Placement says: by default row r on rank
`r % num_ranks`, as its local row `r // num_ranks`. Or each rank has some columns of all rows."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable
from tensorflow.python.trackable.base import VARIABLE_VALUE_KEY

from group_embedding.annotations import TensorLike
from group_embedding.placement import Placement, no_saved_model
from group_embedding.ranks.exchange.interface import Exchange
from group_embedding.ranks.sharding.replica_tables import is_over_replicas, part_here, parts_of

# The type in which object-based checkpoints have a variable, if that is not its own.
SAVED_DTYPE = "_ge_saved_dtype"
_MARK = "_group_embedding_shard"


@dataclasses.dataclass(frozen=True, eq=False)
class ShardedTable:
    """A table of shape [num_rows, dim] of which this rank holds some rows, or some columns.

    A param of `group_embedding_lookup_sparse`. Also describes the optimizer slots of a table.
    """

    variable: Any  # tf.Variable [num_local_rows, num_local_columns]
    name: str  # under which the whole table is saved
    num_rows: int
    dim: int
    exchange: Exchange
    placement: Placement

    @property
    def shape(self) -> tf.TensorShape:
        return tf.TensorShape([self.num_rows, self.dim])

    @property
    def dtype(self) -> tf.DType:
        return self.variable.dtype.base_dtype

    @property
    def columns(self) -> slice:
        """The columns of the whole table that this rank has."""
        return self.placement.columns_of(self.dim, self.exchange.rank, self.exchange.num_ranks)

    def part_of_rank(self, whole: TensorLike) -> tf.Tensor:
        """This rank's rows, or columns, of the whole table."""
        rows = self.placement.rows_of(self.exchange.rank, self.exchange.num_ranks)
        return whole[rows, self.columns]

    def assign_rows(self, whole: TensorLike) -> Any:
        """Sets this rank's rows, and zeros the rest of the variable."""
        if not self.shape.is_compatible_with(whole.shape):
            raise ValueError(
                f"table '{self.name}': expected {self.num_rows} rows of dim {self.dim}, got a "
                f"tensor of shape {tuple(whole.shape)}"
            )
        held = self.placement.num_local_rows(
            self.num_rows, self.exchange.rank, self.exchange.num_ranks
        )
        num_unused = self.variable.shape[0] - held
        rows = self.part_of_rank(whole)
        return self.variable.assign(tf.pad(rows, [[0, num_unused], [0, 0]]) if num_unused else rows)


def mark_shard(
    variable: Any, shape: tuple[int, int], exchange: Exchange, placement: Placement
) -> None:
    """Declares that `variable` holds this rank's part of a table of `shape`; of one that a strategy
    mirrors, each copy those of its replica.

    From now on object-based checkpoints (`tf.train.Checkpoint`, `save_weights`) hold the whole one.
    """
    name = _saved_name(variable)
    for part, of_part in zip(parts_of(variable), exchange.of_this_process):
        setattr(part, _MARK, ShardedTable(part, name, *shape, of_part, placement))
    kinds = BaseResourceVariable, tf.distribute.DistributedValues
    if isinstance(variable, kinds) and not isinstance(variable, _SavedWhole):
        variable.__class__ = _saved_whole(type(variable))  # type: ignore[arg-type]


def sharded_table(variable: Any) -> ShardedTable | None:
    """The ShardedTable that `variable` holds the local rows of, or None.

    Takes a tf.Variable, a keras.Variable, a PartitionedVariable of one part, or a ShardedTable.
    """
    if isinstance(variable, ShardedTable):
        return variable
    if isinstance(variable, tf.Tensor):
        return None
    return getattr(part_here(_held(variable)), _MARK, None)


def refuse_columns(owner: str, shard: ShardedTable) -> None:
    """Refuses a table of which each rank has some columns of all rows.

    Args:
        owner: what asks for rows that one rank has, for the message.

    Raises:
        ValueError: it is such a table.
    """
    if shard.placement.is_by_columns:
        raise ValueError(
            f"{owner}: expected a table whose rows are each on one rank, got table '{shard.name}', "
            f"whose columns are spread over {shard.exchange.num_ranks} ranks "
            f"('{shard.placement}'); place it by rows ('distributed')"
        )


def _held(variable):
    """The tf.Variable that a variable of Keras 3, or a PartitionedVariable of one part, is."""
    if not isinstance(variable, tf.Variable):
        if isinstance(getattr(variable, "value", None), tf.Variable):  # of Keras 3
            return variable.value
        if hasattr(variable, "as_tensor") and len(list(variable)) == 1:
            return next(iter(variable))
    return variable


def exchange_of(variable: Any) -> Exchange | None:
    """The Exchange over whose ranks the rows of a variable, or an EmbeddingVariable, are spread;
    None: this rank has all of it."""
    shard = sharded_table(variable)
    if shard is not None:
        return shard.exchange
    if not isinstance(variable, tf.Variable):
        variable = getattr(variable, "value", None)  # of Keras 3
    variable = part_here(variable)
    is_spread = getattr(variable, "placement", None) is not None
    return variable.exchange if is_spread else None


def table_shape(variable: Any) -> tf.TensorShape:
    """The shape of the whole table that a variable holds, be it sharded or not."""
    shard = sharded_table(variable)
    return tf.TensorShape(variable.shape) if shard is None else shard.shape


def gather_rows(variable: Any) -> tf.Tensor:
    """The whole table as a tensor. Every rank must call it."""
    shard = sharded_table(variable)
    if shard is None:
        return tf.convert_to_tensor(variable)
    num_ranks = shard.exchange.num_ranks
    counts = [
        shard.placement.num_local_rows(shard.num_rows, r, num_ranks) for r in range(num_ranks)
    ]
    parts = parts_of(_held(variable))
    if is_over_replicas(shard.exchange):
        rows = tf.concat([part[:count] for part, count in zip(parts, counts)], axis=0)
    else:
        rows = tf.convert_to_tensor(shard.variable)
        (rows,) = shard.exchange.allgather([rows], f"gather_{_flat(shard.name)}")
    if shard.placement.kind == "one_rank":
        return rows
    if shard.placement.is_by_columns:
        parts = tf.reshape(rows, [num_ranks, shard.num_rows, shard.dim // num_ranks])
        return tf.reshape(tf.transpose(parts, [1, 0, 2]), [shard.num_rows, shard.dim])
    first = [sum(counts[:rank]) for rank in range(num_ranks)]  # row of each rank in `rows`
    row = tf.range(shard.num_rows, dtype=tf.int64)
    owner = shard.placement.owner_of(row, num_ranks)
    local_row = shard.placement.local_row(row, num_ranks)
    return tf.gather(rows, tf.gather(tf.constant(first, tf.int64), owner) + local_row)


def assign_rows(variable: Any, whole: TensorLike) -> Any:
    """Sets a variable from the whole table. No rank waits for another."""
    if sharded_table(variable) is None:
        return variable.assign(whole)
    assigned = [sharded_table(part).assign_rows(whole) for part in parts_of(_held(variable))]
    return assigned[0] if len(assigned) == 1 else tf.group(*assigned)


class _SavedWhole:
    """The whole table, for object-based checkpoints of a variable with the rows of one rank.

    Every rank must save, since all ranks contribute their rows: ranks other than 0 to a path of
    their own. Restoring needs no other rank; the variable must exist by then.
    """

    def _serialize_to_tensors(self):
        saved_dtype = getattr(self, SAVED_DTYPE, self.dtype)
        return {VARIABLE_VALUE_KEY: tf.cast(gather_rows(self), saved_dtype)}

    def _restore_from_tensors(self, restored_tensors):
        return assign_rows(self, tf.cast(restored_tensors[VARIABLE_VALUE_KEY], self.dtype))

    def _export_to_saved_model_graph(self, *args, **kwargs):
        shard = sharded_table(self)
        raise no_saved_model(shard.name, shard.exchange.num_ranks)


@functools.cache
def _saved_whole(stock):
    return type(stock.__name__, (_SavedWhole, stock), {"__module__": stock.__module__})


def _saved_name(variable):
    slice_info = getattr(variable, "_save_slice_info", None)
    return slice_info.full_name if slice_info else variable.name.partition(":")[0]


def _flat(name):
    return name.replace("/", "_")
