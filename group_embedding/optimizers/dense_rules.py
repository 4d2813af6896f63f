"""The rules without a stock twin, on variables that are no tables: whole variables in TensorFlow's
ops, in float32."""

import tensorflow as tf


def rowwise_adagrad(variable, accumulator, gradient, hyper):
    """An accumulator of shape [rows, 1] takes the mean of each row, one of the variable's shape
    each element. Returns the op."""
    gradient = tf.cast(gradient, tf.float32)
    square = gradient * gradient
    if accumulator.shape != variable.shape:
        square = tf.reduce_mean(square, axis=-1, keepdims=True)
    total = _read(accumulator) + square
    change = hyper["learning_rate"] * gradient / (tf.sqrt(total) + hyper["epsilon"])
    return tf.group(_write(accumulator, total), _write(variable, _read(variable) - change))


def rowwise_adam(variable, m, v, gradient, hyper):
    """A v of shape [rows, 1] takes the mean of each row, one of the variable's shape each element.
    Returns the op."""
    gradient = tf.cast(gradient, tf.float32)
    square = gradient * gradient
    if v.shape != variable.shape:
        square = tf.reduce_mean(square, axis=-1, keepdims=True)
    beta_1, beta_2 = hyper["beta_1"], hyper["beta_2"]
    new_m = beta_1 * _read(m) + (1 - beta_1) * gradient
    new_v = beta_2 * _read(v) + (1 - beta_2) * square
    rate = hyper["learning_rate"] * tf.sqrt(1 - hyper["beta_2_power"]) / (1 - hyper["beta_1_power"])
    change = rate * new_m / (tf.sqrt(new_v) + hyper["epsilon"])
    return tf.group(_write(m, new_m), _write(v, new_v), _write(variable, _read(variable) - change))


def lamb(variable, m, v, gradient, hyper):
    """The variable is one layer: one trust ratio. Returns the op."""
    gradient, value = tf.cast(gradient, tf.float32), _read(variable)
    beta_1, beta_2 = hyper["beta_1"], hyper["beta_2"]
    new_m = beta_1 * _read(m) + (1 - beta_1) * gradient
    new_v = beta_2 * _read(v) + (1 - beta_2) * gradient * gradient
    root = tf.sqrt(new_v / (1 - hyper["beta_2_power"]))
    direction = new_m / (1 - hyper["beta_1_power"]) / (root + hyper["epsilon"])
    direction += hyper["l2"] * value
    norm, direction_norm = tf.norm(value), tf.norm(direction)
    both = (norm > 0) & (direction_norm > 0)
    ratio = tf.where(both, tf.math.divide_no_nan(norm, direction_norm), 1.0)
    change = hyper["learning_rate"] * ratio * direction
    return tf.group(_write(m, new_m), _write(v, new_v), _write(variable, value - change))


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
