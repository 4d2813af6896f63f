"""Sequential models of Keras 2 whose first layer takes a dict, as a GroupEmbedding does."""

import functools

import tensorflow as tf

from group_embedding.keras_compat import IS_KERAS_3, keras


@functools.cache  # once
def let_keras_2_build_from_dicts():
    """From now on `Sequential.build` takes a dict of shapes. Keras 2 trains such models; when it
    loads one from a `.keras` file, it would take the names in the dict for a shape."""
    if not IS_KERAS_3:
        keras.Sequential.build = _taking_dicts(keras.Sequential.build)


def _taking_dicts(build):
    @functools.wraps(build)
    def build_from_any(model, input_shape=None):
        if not isinstance(input_shape, dict):
            return build(model, input_shape)
        shape = input_shape
        for layer in model.layers:
            if not layer.built:
                with tf.name_scope(layer.name):
                    layer.build(shape)
            shape = layer.compute_output_shape(shape)
        model._build_input_shape = input_shape
        model.built = True

    return build_from_any
