"""`tf.variable_scope(...).keep_weights()`: a scope computes in bfloat16 with weights of float32."""

import functools

import tensorflow as tf


def keep_weights(self, dtype=tf.float32):
    """Has the scope make its variables of floating-point types in `dtype`.

    A function that asks for another floating-point type gets the variable's value, cast to it, so
    that layers of bfloat16 inputs compute in bfloat16 while optimizers train weights of float32.

    Args:
        dtype: the type of the variables.

    Returns:
        The scope, to enter.

    Example:

    ```python
    with tf.variable_scope("mlp").keep_weights(dtype=tf.float32):
        outputs = tf.layers.dense(tf.cast(inputs, tf.bfloat16), 16)
    outputs = tf.cast(outputs, tf.float32)
    ```
    """
    kept, given = tf.as_dtype(dtype), self._custom_getter

    def get(getter, name, *args, **kwargs):
        asked = tf.as_dtype(kwargs.get("dtype") or tf.float32).base_dtype
        if asked.is_floating:
            kwargs["dtype"] = kept
        if given is not None:
            getter = functools.partial(given, getter)
        variable = getter(name, *args, **kwargs)
        return tf.cast(variable, asked) if asked.is_floating and asked != kept else variable

    self._custom_getter = get
    return self
