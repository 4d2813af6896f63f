"""Copies of keyed tables for `get_weights` and `set_weights`, and so for Keras's EarlyStopping."""

import functools
import tempfile
import weakref

import numpy as np
import tensorflow as tf

from group_embedding.checkpoint.snapshots import Eviction
from group_embedding.ops import save_table


class TableCopy:
    """The content of a keyed table when its `numpy()` was called, which can be assigned to a table.

    Its rows, slots and counts are in a file of a temporary folder, which is removed with the
    object. If ranks share the table, it holds this rank's rows.

    Attributes:
      shape: (0, dim), that of the variable which stands in for the table.
      dtype: of the rows, as NumPy has it.
    """

    def __init__(self, table):
        self._folder = tempfile.TemporaryDirectory(prefix="group_embedding_")
        self._prefix = f"{self._folder.name}/table"
        self._source = weakref.ref(table)
        self._name = table.name.partition(":")[0]
        handle = table.table_handle
        snapshot = save_table.snapshot_tables([handle], [-1], [Eviction()], [False])
        self._manifest = save_table.save_table(handle, self._prefix, snapshot)
        steps = table.trained_steps
        self._step = None if steps is None else steps.read_value()
        self.shape = (0, table.shape[1])
        self.dtype = table.dtype.as_numpy_dtype

    def give_to(self, table):
        """Sets `table` to the copied content. Slots are restored only in the table that was copied;
        in another table they get initial values, as slots of other assigned variables do."""
        handle, is_another = table.table_handle, self._source() is not table
        saved = (handle, self._prefix, self._manifest)
        save_table.verify_table(*saved, as_start=is_another)
        save_table.restore_table(*saved, as_start=is_another)
        if self._step is not None and table.trained_steps is not None:
            table.trained_steps.assign(self._step)

    def __array__(self, dtype=None, copy=None):
        raise no_array(self._name)

    def __repr__(self):
        return f"<TableCopy of '{self._name}' dim={self.shape[1]}>"


def no_array(table_name):
    """The error of who would save or copy a model without the table's rows."""
    return TypeError(
        f"table '{table_name}': an EmbeddingVariable has no array of all its rows; export() it, or "
        "save it with tf.train.Checkpoint, with Keras's `.keras` or `.weights.h5` as a table of a "
        "layers.GroupEmbedding, or in Keras 2 with save_weights(..., save_format='tf')"
    )


@functools.cache  # once
def let_keras_2_set_copies():
    """From now on `set_weights` of Keras 2, which makes arrays of all weights, takes a TableCopy.
    That of Keras 3 does without."""
    layer_class = tf.keras.layers.Layer
    if not hasattr(tf.keras, "KerasTensor"):
        layer_class.set_weights = _taking_copies(layer_class.set_weights)


def _taking_copies(set_weights):
    @functools.wraps(set_weights)
    def set_weights_and_copies(layer, weights):
        weights = list(weights)
        copies = {i: value for i, value in enumerate(weights) if isinstance(value, TableCopy)}
        for i, copy in copies.items():
            weights[i] = np.zeros(copy.shape, copy.dtype)
        set_weights(layer, weights)
        for i, copy in copies.items():
            layer.weights[i].assign(copy)

    return set_weights_and_copies
