"""Content of tables: `assign`, `export` and `incremental_model_dump`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.compat.sok.dynamic_variable import DynamicVariable
from group_embedding.compat.sok.sok_tables import name_of
from group_embedding.lookups import tf_variable
from group_embedding.ranks.sharding import (
    exchange_of,
    gather_rows,
    is_over_replicas,
    refuse_columns,
    sharded_table,
    table_shape,
)
from group_embedding.types import TensorLike
from group_embedding.variables import EmbeddingVariable, KeyedReplicas, to_keys


def assign(var: Any, indices: TensorLike, values: TensorLike) -> Any:
    """Gives keys, or rows, these values.

    Every rank must call it. Ranks may give different keys or the same; each key goes to the rank
    that owns it, whoever gave it, and of one that comes twice the last row counts.

    Args:
        var: a table of `Variable` or `DynamicVariable`.
        indices: [n] integers: keys, or numbers of rows of the whole table.
        values: [n, dim].

    Returns:
        In a graph of TensorFlow 1 the op; None otherwise.

    Raises:
        ValueError: values that are not [n, dim]; keys, or a tensor of a type, that the table's type
            of keys does not have, or rows that are no integers.
        tf.errors.InvalidArgumentError: the same where shapes are not known before; a row outside
            its table. None has changed then.

    Example:

    >>> table = ge.sok.Variable([[1., 2.], [3., 4.]])
    >>> ge.sok.assign(table, [1], [[5., 6.]])
    >>> table.numpy().tolist()
    [[1.0, 2.0], [5.0, 6.0]]
    """
    variable = tf_variable(var)
    is_keyed = isinstance(variable, EmbeddingVariable)
    key_dtype = variable.key_dtype if is_keyed else tf.int64
    indices = to_keys(indices, key_dtype, f"table '{name_of(var)}'")
    values = tf.cast(tf.convert_to_tensor(values), variable.dtype)
    indices, values = _checked(var, indices, values)
    spread_over = exchange_of(var)
    if spread_over is not None:
        indices, values = spread_over.allgather([indices, values], "sok_assign")
    if is_keyed:
        step = variable.current_step()
        versions = None if step is None else tf.fill(tf.shape(indices), step)
        assigned = variable.insert(indices, values, versions=versions)
    else:
        assigned = _assign_rows(var, variable, indices, values)
    return None if tf.executing_eagerly() else assigned


def _checked(var, indices, values):
    """Returns indices and values after checking their shapes. A rank must not gather values of
    another length than indices: those of other ranks would hide the difference."""
    expected = [indices.shape.num_elements(), table_shape(var)[1]]
    if indices.shape.rank not in (None, 1) or not values.shape.is_compatible_with(expected):
        raise ValueError(
            f"table '{name_of(var)}': expected indices [n] and values [n, {expected[1]}], got "
            f"{indices.shape} and {values.shape}"
        )
    same = tf.debugging.Assert(
        tf.equal(tf.size(indices), tf.shape(values)[0]),
        [f"table '{name_of(var)}': expected as many indices as values, got", tf.shape(values)],
    )
    with tf.control_dependencies([] if same is None else [same]):
        return tf.identity(indices), values


def _assign_rows(var, variable, rows, values):
    num_rows = table_shape(var)[0]
    in_range = tf.debugging.Assert(
        tf.reduce_all((rows >= 0) & (rows < num_rows)),
        [f"table '{name_of(var)}': expected rows from 0 to {num_rows - 1}, got", rows],
    )
    with tf.control_dependencies([] if in_range is None else [in_range]):
        rows = tf.identity(rows)
    shard = sharded_table(var)
    if shard is not None:
        refuse_columns("sok.assign", shard)
        num_ranks = shard.exchange.num_ranks
        is_mine = tf.equal(shard.placement.owner_of(rows, num_ranks), shard.exchange.rank)
        rows = shard.placement.local_row(rows, num_ranks)
    else:
        is_mine = tf.fill(tf.shape(rows), True)
    slices = tf.IndexedSlices(tf.boolean_mask(values, is_mine), tf.boolean_mask(rows, is_mine))
    return variable.scatter_update(slices)


def export(var: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns this rank's rows of a table; for a table over the replicas of a strategy, all rows.

    Args:
        var: a table of `Variable` or `DynamicVariable`.

    Returns:
        indices: [n]: keys that have a row, ascending; or the numbers of rows of the whole table.
        values: [n, dim].

    Example:

    >>> table = ge.sok.Variable([[1., 2.], [3., 4.]])
    >>> indices, values = ge.sok.export(table)
    >>> indices.numpy().tolist(), values.numpy().tolist()
    ([0, 1], [[1.0, 2.0], [3.0, 4.0]])
    """
    variable = tf_variable(var)
    if isinstance(variable, (EmbeddingVariable, KeyedReplicas)):
        found = variable.export()
        return found.keys, found.values
    num_rows = table_shape(var)[0]
    rows = tf.range(num_rows, dtype=tf.int64)
    shard = sharded_table(var)
    if shard is not None and is_over_replicas(shard.exchange):
        return rows, gather_rows(var)
    if shard is None:
        return rows, tf.convert_to_tensor(variable)
    refuse_columns("sok.export", shard)
    of_rank = shard.placement.rows_of(shard.exchange.rank, shard.exchange.num_ranks)
    return rows[of_rank], tf.convert_to_tensor(variable)


def incremental_model_dump(
    sok_vars: DynamicVariable | Sequence[DynamicVariable],
    time_threshold: datetime.datetime | Sequence[datetime.datetime],
    sess: Any = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The keys that were trained or assigned since a moment, on all ranks.

    Every rank must call it. Clocks of hosts differ: give a moment somewhat earlier.

    Args:
        sok_vars: a DynamicVariable or a list of them.
        time_threshold: a `datetime.datetime`, or a list with one per table; without a time zone it
            is UTC.
        sess: in a graph of TensorFlow 1, the session.

    Returns:
        keys: a list with, for each table, an array [n], in no order.
        values: a list with, for each table, an array [n, dim].

    Raises:
        TypeError: a table is no DynamicVariable, or a moment no datetime.
        ValueError: lists of different lengths; in a graph, no session.

    Example:

    >>> import datetime
    >>> table = ge.sok.DynamicVariable(dimension=1)
    >>> before = datetime.datetime.now(datetime.timezone.utc)
    >>> ge.sok.assign(table, [7], [[1.]])
    >>> keys, values = ge.sok.incremental_model_dump(table, before)
    >>> keys[0].tolist(), values[0].tolist()
    ([7], [[1.0]])
    """
    tables = list(sok_vars) if isinstance(sok_vars, (list, tuple)) else [sok_vars]
    moments: list[Any] = (
        list(time_threshold) if isinstance(time_threshold, (list, tuple)) else [time_threshold]
    )
    if len(moments) == 1:
        moments = moments * len(tables)
    if len(moments) != len(tables):
        raise ValueError(
            f"incremental_model_dump: expected one time_threshold or {len(tables)}, one per "
            f"table, got {len(moments)}"
        )
    if sess is None and not tf.executing_eagerly():
        raise ValueError("incremental_model_dump: expected sess in a graph of TensorFlow 1")
    parts = [_changed_since(*pair) for pair in zip(tables, moments)]
    parts = [[part.numpy() for part in pair] for pair in parts] if sess is None else sess.run(parts)
    return [np.asarray(keys) for keys, _ in parts], [np.asarray(values) for _, values in parts]


def _changed_since(table, moment):
    if not isinstance(table, DynamicVariable):
        raise TypeError(
            f"incremental_model_dump: expected DynamicVariables, got {type(table).__name__}"
        )
    if not isinstance(moment, datetime.datetime):
        raise TypeError(
            f"table '{name_of(table)}': expected time_threshold to be a datetime.datetime, got "
            f"{moment!r}"
        )
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    with tf.device("/CPU:0"):
        found = table.export()
        changed = found.versions >= int(moment.timestamp() * 1e6)
        parts = [tf.boolean_mask(part, changed) for part in (found.keys, found.values)]
        spread_over = exchange_of(table)
        return parts if spread_over is None else spread_over.allgather(parts, "sok_changes")
