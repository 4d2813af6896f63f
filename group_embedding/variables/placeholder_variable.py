"""The placeholder of a keyed table in TensorFlow: a variable of shape [0, dim]."""

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from group_embedding.variables.keras_ema import let_keras_2_start_averages
from group_embedding.variables.loaded_variable import SavedWithDevice
from group_embedding.variables.refused_optimizers import have_keras_refuse
from group_embedding.variables.table_copy import TableCopy, let_keras_2_set_copies, no_array


class PlaceholderVariable(SavedWithDevice, resource_variable_ops.ResourceVariable):
    """Stands in for a table where gradients are taken, variables are collected, optimizers make
    slots and SavedModels are written. It has no rows: who would read them all, or write to them
    without the table, is refused, and told what to do instead.

    Args:
        name: of the table.
        dim: length of its rows.
        dtype: of its rows.
        trainable, collections: see `tf.compat.v1.get_variable`.
    """

    def __init__(self, name, dim, dtype, trainable, collections):
        self._optimizer_is_wrapped = False
        have_keras_refuse()
        let_keras_2_set_copies()
        let_keras_2_start_averages()
        super().__init__(
            initial_value=lambda: tf.zeros([0, dim], dtype),
            trainable=trainable,
            collections=collections,
            name=name,
            dtype=dtype,
        )

    @property
    def _table_name(self):
        return self.name.partition(":")[0]

    @property
    def constraint(self):
        """None. Optimizers ask for it before they apply a gradient: those are refused here that
        would write to the variable of shape [0, dim]."""
        if not self._optimizer_is_wrapped:
            raise self._unwrapped_optimizer()
        return None

    def scatter_add(self, *args, **kwargs):
        raise self._unwrapped_optimizer()

    scatter_sub = scatter_update = scatter_add

    def refuse_optimizer(self):
        """Raises the error of an optimizer that is not wrapped."""
        raise self._unwrapped_optimizer()

    def _unwrapped_optimizer(self):
        return TypeError(
            f"table '{self._table_name}': an EmbeddingVariable is trained by a wrapped optimizer; "
            "use group_embedding.optimizers.wrap(optimizer), or an optimizer of "
            "group_embedding.optimizers"
        )

    def numpy(self):
        """A TableCopy, which `assign` takes, of this table and of others of its dim."""
        if not tf.executing_eagerly():
            raise no_array(self._table_name)
        return TableCopy(self)

    def assign(self, value, *args, **kwargs):
        if not isinstance(value, TableCopy):
            return super().assign(value, *args, **kwargs)
        value.give_to(self)
        return self

    def __array__(self, *args, **kwargs):
        raise no_array(self._table_name)

    def _dense_var_to_tensor(self, *args, **kwargs):
        raise TypeError(
            f"table '{self._table_name}': an EmbeddingVariable has no tensor of all its rows; look "
            "keys up in it (group_embedding_lookup, tf.nn.embedding_lookup), or export() it"
        )
