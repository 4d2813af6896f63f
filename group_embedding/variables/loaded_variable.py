"""What an EmbeddingVariable becomes where a SavedModel is loaded."""

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from group_embedding.checkpoint import by_object


class LoadedEmbeddingVariable(resource_variable_ops.UninitializedVariable):
    """The variable of shape [0, dim] that functions of a SavedModel refer to. Unlike TensorFlow's
    own loaded variables it tracks its children, so that its table and its step are restored."""

    def _add_trackable_child(self, name, value):
        setattr(self, name, value)
        if hasattr(value, "resource_handle"):
            by_object.mark_as_table(value)
            self._track_trackable(value, name)
        elif isinstance(value, resource_variable_ops.BaseResourceVariable):
            self._track_trackable(value, name)


def loaded_variable(saved_object):
    """The variable that a SavedObject of a SavedModel describes."""
    variable = saved_object.variable
    with tf.device(variable.device or None):
        return LoadedEmbeddingVariable(
            trainable=variable.trainable,
            name=variable.name or None,
            shape=tf.TensorShape(variable.shape),
            dtype=tf.as_dtype(variable.dtype),
        )
