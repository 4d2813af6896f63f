"""Makes tables whose rows are spread over ranks, and has them start from a checkpoint."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from group_embedding.annotations import Initializer
from group_embedding.placement import check_columns, to_placement
from group_embedding.ranks.exchange.active import current
from group_embedding.ranks.sharding.replica_tables import (
    check_in_scope,
    check_spread,
    is_over_replicas,
    refuse_stock_updates,
)
from group_embedding.ranks.sharding.sharded_table import assign_rows, mark_shard, sharded_table

_when_made: list[Callable[[], None]] = []


def make_table(
    shape: Sequence[int],
    initializer: Initializer,
    create: Callable[[Any, Any], Any],
    placement: str | None = None,
) -> Any:
    """Makes the variable of a table: whole with one rank, else this rank's rows.

    The rows start as those of the whole table would in one process: the whole table is drawn, with
    the same seed, and this rank's rows are kept. For that moment it takes the memory of the whole.

    Args:
        shape: `(num_rows, dim)` of the whole table.
        initializer: initializer of the whole table: a callable of shape and dtype, or a tensor.
        create: `create(shape, initializer)` makes and returns the variable.
        placement: 'distributed'; 'localized:<rank>': all rows are on that rank; 'columns': each
            rank has as many columns of all rows; 'replicated': all are on each. None: the default
            of the job.

    Returns:
        What `create` returned. `sharded_table` knows it from now on, unless it is replicated.

    Raises:
        ValueError: `create` cut a sharded table into several parts, a placement of another form, or
            columns that the ranks do not divide.
    """
    exchange = current()
    num_rows, dim = (int(size) for size in shape)
    where = to_placement(
        "a table", placement or exchange.placement, exchange.num_ranks, keyed=False
    )
    if where is None:
        return create(shape, initializer)
    if where.is_by_columns:
        check_columns(f"a table of shape [{num_rows}, {dim}]", dim, exchange.num_ranks)
    if is_over_replicas(exchange):
        check_in_scope(exchange)
        check_spread(where)
        # All replicas have as many rows as the first: their slots, too, are of one shape.
        variable = create((where.num_local_rows(num_rows, 0, exchange.num_ranks), dim), tf.zeros)
        copies = _only_part(variable)
        mark_shard(copies, (num_rows, dim), exchange, where)
        assign_rows(copies, _draw(initializer, (num_rows, dim), copies.dtype))
        refuse_stock_updates(copies)
        return variable
    local_rows = where.num_local_rows(num_rows, exchange.rank, exchange.num_ranks)
    local_columns = where.num_local_columns(dim, exchange.num_ranks)
    of_rank = _PartOfRank(initializer, (num_rows, dim), where, exchange)
    variable = create((local_rows, local_columns), of_rank)
    mark_shard(_only_part(variable), (num_rows, dim), exchange, where)
    table_is_made()
    return variable


def when_table_is_made(call: Callable[[], None]) -> None:
    """Has `call()` called, in the table's graph, each time that a sharded table has been made."""
    if call not in _when_made:
        _when_made.append(call)


def table_is_made() -> None:
    """Calls what `when_table_is_made` was given."""
    for call in _when_made:
        call()


def restore_table(variable: Any, checkpoint: str, tensor_name: str) -> Any:
    """Makes the shard `variable` start from the whole table `tensor_name` of a checkpoint (a path,
    or a folder, of which the latest is taken)."""
    shard = sharded_table(variable)
    checkpoint = os.fspath(checkpoint)
    path = tf.train.latest_checkpoint(checkpoint) or checkpoint
    # `tf.train.load_checkpoint` takes a prefix of `ram://` for a folder.
    shapes = tf.compat.v1.train.NewCheckpointReader(path).get_variable_to_shape_map()
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
        rows = tf.ensure_shape(shard.part_of_rank(whole), shard.variable.shape)
    if tf.executing_eagerly() or isinstance(tf.compat.v1.get_default_graph(), FuncGraph):
        shard.variable.assign(rows)
    else:
        shard.variable._initializer_op = shard.variable.assign(rows).op
        shard.variable._initial_value = rows


class _PartOfRank:
    """Initializer of one rank's rows, or columns, out of the initializer of the whole table."""

    def __init__(self, initializer, shape, placement, exchange):
        self._initializer = initializer
        self._shape = shape
        self._part = (
            placement.rows_of(exchange.rank, exchange.num_ranks),
            placement.columns_of(shape[1], exchange.rank, exchange.num_ranks),
        )

    def __call__(self, shape, dtype=None, partition_info=None, **kwargs):
        del shape, partition_info, kwargs  # of the local part: the whole table is drawn
        return _draw(self._initializer, self._shape, dtype)[self._part]


def _draw(initializer, shape, dtype):
    """The whole table as it starts."""
    initializer = initializer() if inspect.isclass(initializer) else initializer
    if not callable(initializer):
        return tf.cast(tf.convert_to_tensor(initializer), dtype)
    return initializer(shape) if dtype is None else initializer(shape, dtype=dtype)


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
