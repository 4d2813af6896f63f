"""The Keras under the layers: `tf.keras`, which is Keras 2 up to TensorFlow 2.15, then 3."""

import contextlib
import contextvars
import importlib

import tensorflow as tf
from tensorflow.python.framework import ops

keras = tf.keras
IS_KERAS_3 = hasattr(keras, "KerasTensor")
# The class of new optimizers, also after `sok.init` has replaced `tf.keras.optimizers`.
Optimizer = keras.optimizers.Optimizer

# The graphs in which Keras 2 and Keras 3 build a model from the shapes of its inputs.
_GRAPHS = ("build_graph", "scratch_graph")


def is_built_from_shapes():
    """Returns whether Keras is building a model from the shapes of its inputs, as when it loads a
    subclassed model: it calls the model with dense float tensors, whatever the inputs are."""
    graph = ops.get_default_graph()
    while graph is not None:
        if getattr(graph, "name", "").startswith(_GRAPHS):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


_is_frozen: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "group_embedding_in_frozen_layer", default=False
)


@contextlib.contextmanager
def in_call_of(layer):
    """Inside, in this thread, `in_frozen_layer` knows the layer. Keras 3 keeps none itself."""
    token = _is_frozen.set(not layer.trainable)
    try:
        yield
    finally:
        _is_frozen.reset(token)


def in_frozen_layer():
    """Returns whether the innermost layer that is being called is frozen: `trainable = False`."""
    return _is_frozen.get() or (not IS_KERAS_3 and _call_context().frozen)


def _call_context():
    package = keras.layers.Layer.__module__.partition(".src")[0]
    return importlib.import_module(f"{package}.src.engine.base_layer_utils").call_context()


def policy_of(layer):
    """The dtype policy of a layer, for the layers inside it."""
    return layer.dtype_policy if IS_KERAS_3 else layer._dtype_policy
