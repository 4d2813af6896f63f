"""Where a layer's tables come from, and how they are read and stored.

The one seam between the Keras layer and whatever holds the rows: the layer itself only knows a
table by its name.
"""

import math

import tensorflow as tf

from group_embedding import exchange
from group_embedding.config import TABLE_DTYPES, check_choice
from group_embedding.layers.keras_version import IS_KERAS_3, keras


def make_table(layer, table):
    """Makes the variable of one table, tracked by the layer.

    Args:
      layer: The Keras layer that asks, while it is being built.
      table: The `TableConfig`.

    Returns:
      A Keras weight of shape [num_rows, dim], or with the rows of this rank where tables are
      sharded: a `tf.Variable` under Keras 2, a `keras.Variable` under Keras 3.
    """
    owner = f"table '{table.name}'"
    dtype = check_choice(owner, "dtype", table.dtype or layer.variable_dtype, TABLE_DTYPES)
    if "/" in table.name:
        raise ValueError(f"{owner}: expected a name without '/', which Keras keeps for itself")
    # The lookup reads the variable itself; its outputs are cast, never the whole table.
    keep_dtype = {"autocast": False} if IS_KERAS_3 else {"experimental_autocast": False}

    def create(shape, initializer):
        return layer.add_weight(
            name=table.name,
            shape=shape,
            dtype=dtype,
            initializer=initializer,
            trainable=table.trainable,
            **keep_dtype,
        )

    weight = exchange.make_table((table.num_rows, table.dim), table_initializer(table), create)
    if IS_KERAS_3:
        # Keras 3 tells TensorFlow's checkpoints of weights that are attributes, not of those in a
        # dict; Keras 2 does this in add_weight.
        layer._track_trackable(weight, name=table.name, overwrite=True)
    return weight


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
    """Writes the whole table into a Keras weight store, under its name. A sharded table is
    gathered: every rank must save."""
    value = exchange.gather_rows(lookup_param(weight))
    # HDF5 has no bfloat16.
    store[name] = (tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value).numpy()


def restore_table(store, name, weight):
    """Reads a table from a Keras weight store.

    Raises:
      ValueError: The store has no such table, or one of another shape.
    """
    if name not in store:
        raise ValueError(
            f"table '{name}': expected it among the saved tables, got {sorted(store.keys())}"
        )
    rows = store[name]
    expected = tuple(exchange.table_shape(lookup_param(weight)))
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
