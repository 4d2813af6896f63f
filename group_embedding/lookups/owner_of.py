"""Which rank stores the rows of a table's ids."""

from __future__ import annotations

import tensorflow as tf

from group_embedding.lookups.lookup_table import variable_of_all
from group_embedding.ops.route_ids import key_owners
from group_embedding.ranks.exchange.active import current
from group_embedding.ranks.sharding.replica_tables import part_here
from group_embedding.ranks.sharding.sharded_table import (
    refuse_columns,
    sharded_table,
    table_shape,
)
from group_embedding.types import Table, TensorLike
from group_embedding.variables import EmbeddingVariable
from group_embedding.variables.key_types import are_keys


def owner_of(table: Table, ids: TensorLike) -> tf.Tensor:
    """The rank that stores the row of each id: by the number of the row, or by the key.

    No rank waits for another. A key has its owner before it has a row.

    Args:
        table: an EmbeddingVariable, a `tf.Variable`, a `keras.Variable`, or one of a layer's
            `tables`.
        ids: an array, a tensor, or a list of integers of any shape: keys of the table's `key_dtype`
            (or of a type whose values all are), else numbers of rows of the whole table.

    Returns:
        int64 of the shape of `ids`, from 0 to `num_ranks - 1`. A table that every rank has whole is
        this rank's own.

    Raises:
        TypeError: ids are not integers, or not of a type whose values are keys of the table.
        ValueError: the table is spread by columns, so that all ranks store a part of each row.
        tf.errors.InvalidArgumentError: an id is not the number of a row.

    Example:

    >>> user = ge.get_embedding_variable("user", 4)
    >>> ge.owner_of(user, [7, 2**40]).numpy().tolist()  # without a strategy: one rank
    [0, 0]
    """
    variable = part_here(variable_of_all(table))
    if isinstance(variable, EmbeddingVariable):
        return _owner_of_keys(variable, ids)
    return _owner_of_rows(table, ids)


def _owner_of_keys(table, keys):
    keys = _integers(table, keys, table.key_dtype)
    if not are_keys(keys.dtype, table.key_dtype):
        raise TypeError(
            f"table '{_name_of(table)}': expected keys of {table.key_dtype.name}, or of a type "
            f"whose values all are of it, got {keys.dtype.name}"
        )
    with tf.device("/CPU:0"):
        keys = table._to_int64(keys)
        if table.placement is None:
            return tf.zeros_like(keys)
        if table.placement.kind == "one_rank":
            return tf.fill(tf.shape(keys), tf.constant(table.placement.rank, tf.int64))
        return key_owners(keys, table.exchange.num_ranks)


def _owner_of_rows(table, rows):
    shard = sharded_table(table)
    rows = _integers(table, rows, tf.int64)
    with tf.device("/CPU:0"):
        rows = _rows_of_table(table, rows)
        if shard is None:
            return tf.fill(tf.shape(rows), tf.constant(current().rank, tf.int64))
        refuse_columns("owner_of", shard)
        return shard.placement.owner_of(rows, shard.exchange.num_ranks)


def _integers(table, ids, dtype):
    """Ids as a tensor; of Python's integers, of `dtype`."""
    if not hasattr(ids, "dtype"):
        ids = tf.convert_to_tensor(ids, dtype)
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise TypeError(f"table '{_name_of(table)}': expected integer ids, got {ids.dtype.name}")
    return ids


def _rows_of_table(table, rows):
    """Ids as int64; fails when it runs if one is not the number of a row."""
    num_rows = table_shape(table)[0]
    as_int64 = tf.cast(rows, tf.int64)  # of uint64, those from 2^63 on are negative
    outside = tf.logical_or(as_int64 < 0, as_int64 >= num_rows)
    checked = tf.debugging.Assert(
        tf.logical_not(tf.reduce_any(outside)),
        [
            f"table '{_name_of(table)}': expected 0 <= id < {num_rows}, got",
            tf.boolean_mask(tf.reshape(rows, [-1]), tf.reshape(outside, [-1])),
        ],
    )
    with tf.control_dependencies([] if checked is None else [checked]):
        return tf.identity(as_int64)


def _name_of(table):
    name = getattr(sharded_table(table) or table, "name", "")  # an eager tensor has none
    return name.partition(":")[0]
