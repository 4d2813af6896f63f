"""Makes, reads and stores the tables of a layer.

It is the only connection between the Keras layer and the storage of rows: the layer knows a table
by its name only.
"""

import dataclasses
import math
from typing import Any

import tensorflow as tf

from group_embedding.checkpoint import in_store
from group_embedding.config import TABLE_DTYPES, check_choice
from group_embedding.keras_compat import keras
from group_embedding.layers import sharing
from group_embedding.lookups.lookup_table import variable_of_all
from group_embedding.optimizers import set_slot_dtype
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import (
    assign_rows,
    gather_rows,
    sharded_table,
    table_shape,
)
from group_embedding.variables import EmbeddingVariable, to_keyed_options
from group_embedding.variables.keras_variable import (
    add_keyed_weight,
    add_made_weight,
    add_weight_as_it_is,
    track_weight,
)
from group_embedding.variables.over_replicas import KeyedReplicas

_KEYED = (EmbeddingVariable, KeyedReplicas)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerTables:
    """The weights of a layer's tables by name. Keras knows them as weights already. In a dict it
    would find them again whenever it is asked for weights, and compare each with all others."""

    by_name: dict[str, Any]


def make_layer_table(layer, table, placement):
    """Makes the variable of one table, tracked by the layer; or has the layer track the variable
    that another layer has made of the same `TableConfig`.

    Args:
      layer: The Keras layer that asks, while it is being built.
      table: The `TableConfig`.
      placement: Where its rows are, over several ranks.

    Returns:
      A Keras weight of shape [num_rows, dim], or with the rows of this rank where tables are
      sharded: a `tf.Variable` under Keras 2, a `keras.Variable` under Keras 3. Without num_rows
      that variable is, or holds, an `EmbeddingVariable`.
    """
    weight = sharing.find_weight(table)
    if weight is None:
        make = _make_keyed_table if table.num_rows is None else _make_table_of_rows
        weight = make(layer, table, _dtype_of(layer, table), placement)
        sharing.share_weight(table, weight)
    else:
        add_made_weight(layer, weight)
    track_weight(layer, weight, table.name)
    return weight


def _dtype_of(layer, table):
    owner = f"table '{table.name}'"
    if "/" in table.name:
        raise ValueError(f"{owner}: expected a name without '/', which Keras keeps for itself")
    return check_choice(owner, "dtype", table.dtype or layer.variable_dtype, TABLE_DTYPES)


def _make_table_of_rows(layer, table, dtype, placement):
    def create(shape, initializer):
        return add_weight_as_it_is(
            layer,
            name=table.name,
            shape=shape,
            dtype=dtype,
            initializer=initializer,
            trainable=table.trainable,
        )

    shape = (table.num_rows, table.dim)
    weight = make_table(shape, table_initializer(table), create, placement)
    if table.slot_dtype is not None:
        set_slot_dtype(weight, table.slot_dtype)
    return weight


def _make_keyed_table(layer, table, dtype, placement):
    own = to_keyed_options(table.name, table.ev_option).initializer
    if own is not None and table.initializer is not None:
        raise ValueError(
            f"table '{table.name}': expected one initializer, got {table.initializer!r} and, in "
            f"ev_option, {own!r}"
        )
    return add_keyed_weight(
        layer,
        table.name,
        table.trainable,
        embedding_dim=table.dim,
        key_dtype=table.key_dtype or "int64",
        value_dtype=dtype,
        initializer=table_initializer(table) if own is None else own,
        ev_option=table.ev_option,
        placement=placement,
    )


def table_initializer(table):
    """Returns the Keras initializer of a table."""
    if table.initializer is None:
        return keras.initializers.TruncatedNormal(stddev=1 / math.sqrt(table.dim))
    return keras.initializers.get(table.initializer)


def lookup_param(weight):
    """Returns the argument of the lookup for a weight, such that gradients reach the weight."""
    variable = weight if isinstance(weight, tf.Variable) else weight.value
    if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
        # Outside the replicas, as when a functional model is put together, a mirrored variable has
        # no handle; any of its copies will do.
        return tf.distribute.get_strategy().experimental_local_results(variable)[0]
    return variable


def store_table(store, name, weight):
    """Writes the whole table into a Keras weight store, under its name. A table that is spread
    over ranks is gathered: every rank must save."""
    table = variable_of_all(weight)
    if isinstance(table, _KEYED):
        in_store.store_table(store, name, table)
        return
    store[name] = _storable(gather_rows(lookup_param(weight)))


def _storable(value):
    # HDF5 has no bfloat16.
    return (tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value).numpy()


def restore_layer_table(store, name, weight):
    """Reads a table from a Keras weight store.

    Raises:
      ValueError: The store has no such table, or one of another shape.
    """
    table = variable_of_all(weight)
    is_keyed = isinstance(table, _KEYED)
    if not (in_store.has_table(store, name) if is_keyed else name in store):
        raise ValueError(
            f"table '{name}': expected it among the saved tables, got {_tables_in(store)}"
        )
    if is_keyed:
        in_store.restore_table(store, name, table)
        return
    rows = store[name]
    expected = tuple(table_shape(lookup_param(weight)))
    if tuple(rows.shape) != expected:
        raise ValueError(
            f"table '{name}': expected shape {expected}, got {tuple(rows.shape)} "
            "among the saved tables"
        )
    whole = tf.cast(tf.convert_to_tensor(rows[...]), weight.dtype)
    if sharded_table(weight) is None:
        weight.assign(whole)
    else:
        assign_rows(weight, whole)


def _tables_in(store):
    return sorted({key.partition(":")[0] for key in list(store.keys())})
