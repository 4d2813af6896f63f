"""Rules on variables that are no tables, in TensorFlow's ops, in float32."""

import tensorflow as tf


def _read(variable):
    return tf.cast(tf.convert_to_tensor(variable), tf.float32)


def _write(variable, value):
    return variable.assign(tf.cast(value, tf.as_dtype(variable.dtype).base_dtype))


def apply_dense(rule, variable, slots, gradient, hyper):
    """Updates a whole variable and its slots. `rule` is a function of their values, the gradient
    and the hyper-parameters by name, and returns the new values in a list. Returns the op."""
    values = [_read(one) for one in (variable, *slots)]
    new = rule(*values, tf.cast(gradient, tf.float32), hyper)
    with tf.control_dependencies(new):
        return tf.group(*map(_write, (variable, *slots), new))


def apply_sparse(rule, variable, slots, gradient, indices, hyper):
    """Updates slices of a variable and of its slots as `apply_dense` does; no index comes twice."""
    values = [tf.cast(tf.gather(one, indices), tf.float32) for one in (variable, *slots)]
    new = rule(*values, tf.cast(gradient, tf.float32), hyper)
    with tf.control_dependencies(new):
        return tf.group(
            *[
                tf.compat.v1.scatter_update(one, indices, tf.cast(value, one.dtype.base_dtype))
                for one, value in zip((variable, *slots), new)
            ]
        )
