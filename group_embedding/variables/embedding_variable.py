"""A table whose rows are found by key."""

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.saved_model import registration

from group_embedding.checkpoint.by_name import SavedByName
from group_embedding.checkpoint.snapshots import Eviction
from group_embedding.ops import embedding_table
from group_embedding.variables import initial_values
from group_embedding.variables.loaded_variable import loaded_variable
from group_embedding.variables.options import (
    CBFFilter,
    EmbeddingVariableOption,
    GlobalStepEvict,
    StorageType,
)
from group_embedding.variables.table_resource import TableResource


@registration.register_serializable(package="group_embedding")
class EmbeddingVariable(resource_variable_ops.ResourceVariable, SavedByName):
    """A trainable table with a row for every 64-bit key that was trained.

    Made by `get_embedding_variable`. To TensorFlow it is a variable of shape [0, dim], which stands
    in for the table where gradients are taken, variables are collected and optimizers make slots;
    the rows lie in a native table, which lookups read and wrapped optimizers update.

    Attributes:
      step: Where the versions of keys come from: the step in which a key was trained last. None,
        a number or a scalar variable, such as a Keras optimizer's `iterations`. In a graph of
        TensorFlow 1 None means the graph's global step, if it has one.
      key_dtype: int32, int64, uint32 or uint64.
      ev_option: EmbeddingVariableOption.
      rows: The TableResource.
    """

    def __init__(
        self,
        name,
        embedding_dim,
        key_dtype=tf.int64,
        value_dtype=tf.float32,
        initializer=None,
        trainable=True,
        collections=None,
        ev_option=None,
    ):
        self.key_dtype = tf.as_dtype(key_dtype)
        self.ev_option = ev_option or EmbeddingVariableOption()
        self.step = None
        self._optimizer_is_wrapped = False
        with tf.init_scope(), tf.device("/CPU:0"):
            super().__init__(
                initial_value=lambda: tf.zeros([0, embedding_dim], value_dtype),
                trainable=trainable,
                collections=collections,
                name=name,
                dtype=value_dtype,
            )
            self._make_table(initializer)

    def _make_table(self, initializer):
        table_name = self.name.partition(":")[0]
        initial = self._initial_values(table_name, initializer)
        option = self.ev_option

        def initialize(handle, if_needed):
            return embedding_table.initialize(
                handle,
                initial,
                option.init_option.default_value_no_permission,
                _admission(option.filter_option),
                _max_bytes(table_name, option.storage_option),
                if_needed,
            )

        rows = TableResource(
            table_name, initialize, self.current_step, _eviction(option.evict_option)
        )
        self.rows = self._track_trackable(rows, "table")
        made = self.rows.initialize()
        if not tf.executing_eagerly():
            self._initializer_op = tf.group(self._initializer_op, made)

    def _initial_values(self, table_name, initializer):
        dim = self.shape[1]
        rows = self.ev_option.init_option.default_value_dim
        if rows is None:
            return initial_values.per_key(table_name, initializer, dim, self.dtype)
        return initial_values.drawn_once(table_name, initializer, rows, dim, self.dtype)

    @property
    def table_handle(self):
        """The handle of the native table."""
        return self.rows.resource_handle

    def current_step(self):
        """The step of a lookup made now: a number, a tensor or None."""
        if self.step is not None:
            return tf.convert_to_tensor(self.step)
        if tf.compat.v1.executing_eagerly_outside_functions():
            return None
        global_step = tf.compat.v1.train.get_global_step()
        return None if global_step is None else tf.convert_to_tensor(global_step)

    def is_initialized(self, name=None):
        with tf.name_scope(name or "is_initialized"):
            table = embedding_table.is_initialized(self.table_handle)
            return tf.logical_and(super().is_initialized(), table)

    @classmethod
    def _deserialize_from_proto(cls, object_proto, **kwargs):
        del kwargs
        return loaded_variable(object_proto)

    def sparse_read(self, indices, name=None):
        """The rows of keys, [..., dim]: what `tf.gather` and `tf.nn.embedding_lookup` call."""
        from group_embedding.lookup import group_embedding_lookup  # which takes this class

        return group_embedding_lookup([self], [indices], name=name or "sparse_read")[0]


def _eviction(option):
    if option is None:
        return Eviction()
    if isinstance(option, GlobalStepEvict):
        if option.steps_to_live is None:
            return Eviction()
        return Eviction("global_step", steps_to_live=option.steps_to_live)
    if option.l2_weight_threshold < 0:
        return Eviction()
    return Eviction("l2_weight", l2_weight=option.l2_weight_threshold)


def _admission(filter_option):
    if filter_option is None:
        return embedding_table.admission_by_counter(0)
    if not isinstance(filter_option, CBFFilter):
        return embedding_table.admission_by_counter(filter_option.filter_freq)
    return embedding_table.admission_by_bloom_filter(
        filter_option.filter_freq,
        filter_option.max_element_size,
        filter_option.false_positive_probability,
        tf.as_dtype(filter_option.counter_type).size,
    )


def _max_bytes(table_name, storage):
    if storage.storage_type not in (None, StorageType.DRAM):
        raise ValueError(
            f"table '{table_name}': expected storage_type DRAM, got {storage.storage_type.name}, "
            "which is not supported yet"
        )
    if storage.storage_size is None:
        return 0
    if len(storage.storage_size) != 1:
        raise ValueError(
            f"table '{table_name}': expected storage_size of one tier, as storage_type DRAM has, "
            f"got {list(storage.storage_size)}"
        )
    return storage.storage_size[0]
