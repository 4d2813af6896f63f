"""Where a layer's tables come from, and how they are read and stored.

The one seam between the Keras layer and whatever holds the rows: the layer itself only knows a
table by its name.
"""

import math

import tensorflow as tf

from group_embedding import exchange
from group_embedding.config import TABLE_DTYPES, check_choice
from group_embedding.layers.keras_version import keras
from group_embedding.variables import EmbeddingVariable, EmbeddingVariableOption
from group_embedding.variables.get_variable import keyed_variables
from group_embedding.variables.keras_variable import add_weight_as_it_is, track_weight

# What is stored of a keyed table: EmbeddingVariable.export().
_KEYED = ("keys", "values", "versions", "freqs")


def make_table(layer, table, placement):
    """Makes the variable of one table, tracked by the layer.

    Args:
      layer: The Keras layer that asks, while it is being built.
      table: The `TableConfig`.
      placement: Where its rows are, over several ranks.

    Returns:
      A Keras weight of shape [num_rows, dim], or with the rows of this rank where tables are
      sharded: a `tf.Variable` under Keras 2, a `keras.Variable` under Keras 3. Without num_rows
      that variable is, or holds, an `EmbeddingVariable`.
    """
    owner = f"table '{table.name}'"
    dtype = check_choice(owner, "dtype", table.dtype or layer.variable_dtype, TABLE_DTYPES)
    if "/" in table.name:
        raise ValueError(f"{owner}: expected a name without '/', which Keras keeps for itself")

    def create(shape, initializer):
        return add_weight_as_it_is(
            layer,
            name=table.name,
            shape=shape,
            dtype=dtype,
            initializer=initializer,
            trainable=table.trainable,
        )

    if table.num_rows is None:
        weight = _make_keyed_table(table, dtype, create, placement)
    else:
        shape = (table.num_rows, table.dim)
        weight = exchange.make_table(shape, table_initializer(table), create, placement)
    track_weight(layer, weight, table.name)
    return weight


def _make_keyed_table(table, dtype, create, placement):
    option = table.ev_option or EmbeddingVariableOption()
    own = option.init_option.initializer
    if own is not None and table.initializer is not None:
        raise ValueError(
            f"table '{table.name}': expected one initializer, got {table.initializer!r} and, in "
            f"InitializerOption, {own!r}"
        )
    with keyed_variables(
        embedding_dim=table.dim,
        value_dtype=dtype,
        initializer=table_initializer(table) if own is None else own,
        ev_option=option,
        placement=placement,
    ):
        return create((0, table.dim), "zeros")


def table_initializer(table):
    """Returns the Keras initializer of a table."""
    if table.initializer is None:
        return keras.initializers.TruncatedNormal(stddev=1 / math.sqrt(table.dim))
    return keras.initializers.get(table.initializer)


def lookup_param(weight):
    """Returns what the lookup takes for a weight, such that gradients reach the weight."""
    variable = weight if isinstance(weight, tf.Variable) else weight.value
    if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
        # Outside the replicas, as when a functional model is put together, a mirrored variable has
        # no handle; any of its copies will do.
        return tf.distribute.get_strategy().experimental_local_results(variable)[0]
    return variable


def store_table(store, name, weight):
    """Writes the whole table into a Keras weight store, under its name. A table that is spread
    over ranks is gathered: every rank must save. Of a keyed table there is an array for each of
    _KEYED."""
    variable = lookup_param(weight)
    if isinstance(variable, EmbeddingVariable):
        for part, value in zip(_KEYED, variable.export(gather=True)):
            store[f"{name}:{part}"] = _storable(value)
        return
    store[name] = _storable(exchange.gather_rows(variable))


def _storable(value):
    # HDF5 has no bfloat16.
    return (tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value).numpy()


def restore_table(store, name, weight):
    """Reads a table from a Keras weight store.

    Raises:
      ValueError: The store has no such table, or one of another shape.
    """
    variable = lookup_param(weight)
    if isinstance(variable, EmbeddingVariable):
        _restore_keyed_table(store, name, variable)
        return
    if name not in store:
        raise ValueError(
            f"table '{name}': expected it among the saved tables, got {sorted(store.keys())}"
        )
    rows = store[name]
    expected = tuple(exchange.table_shape(variable))
    if tuple(rows.shape) != expected:
        raise ValueError(
            f"table '{name}': expected shape {expected}, got {tuple(rows.shape)} "
            "among the saved tables"
        )
    whole = tf.cast(tf.convert_to_tensor(rows[...]), weight.dtype)
    if exchange.sharded_table(weight) is None:
        weight.assign(whole)
    else:
        exchange.assign_rows(weight, whole)


def _restore_keyed_table(store, name, variable):
    """Makes the table what was saved; keys that it has beside these are erased."""
    missing = [part for part in _KEYED if f"{name}:{part}" not in store]
    if missing:
        raise ValueError(
            f"table '{name}': expected its {', '.join(_KEYED)} among the saved tables, got "
            f"{sorted(store.keys())}"
        )
    keys, values, versions, freqs = (store[f"{name}:{part}"][...] for part in _KEYED)
    if values.shape[1:] != (variable.shape[1],):
        raise ValueError(
            f"table '{name}': expected rows of dim {variable.shape[1]}, got shape {values.shape} "
            "among the saved tables"
        )
    variable.erase(variable.export()[0])
    variable.insert(keys, tf.cast(values, variable.dtype), versions=versions, freqs=freqs)
