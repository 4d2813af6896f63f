"""Rules on variables that are no tables, in TensorFlow's ops, in float32; and DeepRec's rules."""

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


def adagrad_decay(x, accumulator, num_decays, g, hyper):
    due = num_decays < hyper["decays_due"]
    shrunk = accumulator * hyper["accumulator_decay_rate"]
    decayed = tf.maximum(shrunk, hyper["accumulator_floor"])
    accumulator = tf.where(due, decayed, accumulator) + g * g
    x -= hyper["learning_rate"] * g / tf.sqrt(accumulator)
    return [x, accumulator, num_decays + tf.cast(due, tf.float32)]


def adam(x, m, v, g, hyper):
    hyper = {name: tf.cast(value, tf.float32) for name, value in hyper.items()}
    m = hyper["beta_1"] * m + (1 - hyper["beta_1"]) * g
    v = hyper["beta_2"] * v + (1 - hyper["beta_2"]) * g * g
    rate = hyper["learning_rate"] * tf.sqrt(1 - hyper["beta_2_power"])
    rate /= 1 - hyper["beta_1_power"]
    return [x - rate * m / (tf.sqrt(v) + hyper["epsilon"]), m, v]


def rmsprop(x, v, m, g, hyper):
    hyper = {name: tf.cast(value, tf.float32) for name, value in hyper.items()}
    v = hyper["rho"] * v + (1 - hyper["rho"]) * g * g
    step = hyper["learning_rate"] * g / tf.sqrt(v + hyper["epsilon_in_root"])
    m = hyper["momentum"] * m + step
    return [x - m, v, m]
