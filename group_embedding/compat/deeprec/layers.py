"""`tf.layers` and `tf.nn.rnn_cell` where TensorFlow has none: beside Keras 3, from 2.16 on."""

import tensorflow as tf

from group_embedding.keras_compat import IS_KERAS_3

v1 = tf.compat.v1


def of_tensorflow_1():
    """Of `tf.layers` what DeepRec's scripts take, by dotted name; none where TensorFlow has it."""
    if not IS_KERAS_3:
        return {}
    return {f"layers.{each.__name__}": each for each in (batch_normalization, dense, dropout)}


def dense(
    inputs,
    units,
    activation=None,
    use_bias=True,
    kernel_initializer=None,
    bias_initializer=None,
    kernel_regularizer=None,
    bias_regularizer=None,
    activity_regularizer=None,
    kernel_constraint=None,
    bias_constraint=None,
    trainable=True,
    name=None,
    reuse=None,
):
    """TensorFlow 1's `tf.layers.dense`: `activation(inputs @ kernel + bias)`.

    Args:
        inputs: a float tensor [..., width]; its width must be known.
        units: the width of the result.
        activation: a function of a tensor, or None.
        use_bias: whether there is a bias.
        kernel_initializer, bias_initializer: of the variables "kernel", [width, units], and "bias",
            [units]. None: of the variable scope, and zeros.
        kernel_regularizer, bias_regularizer, activity_regularizer: functions of a variable or of
            the result, whose values are added to `tf.GraphKeys.REGULARIZATION_LOSSES`; None: none.
        kernel_constraint, bias_constraint: functions that optimizers apply after an update.
        trainable: whether optimizers train the variables.
        name: of the variable scope; None: "dense", with a number where that is taken.
        reuse: see `tf.variable_scope`.

    Returns:
        A tensor [..., units].
    """
    inputs = tf.convert_to_tensor(inputs)
    with v1.variable_scope(name, "dense", [inputs], reuse=reuse):
        kernel = v1.get_variable(
            "kernel",
            [_width(inputs, "dense"), units],
            inputs.dtype,
            kernel_initializer,
            kernel_regularizer,
            trainable,
            constraint=kernel_constraint,
        )
        result = (
            tf.linalg.matmul(inputs, kernel)
            if inputs.shape.rank == 2
            else tf.tensordot(inputs, kernel, [[inputs.shape.rank - 1], [0]])
        )
        if use_bias:
            result += v1.get_variable(
                "bias",
                [units],
                inputs.dtype,
                bias_initializer or v1.zeros_initializer(),
                bias_regularizer,
                trainable,
                constraint=bias_constraint,
            )
        result = result if activation is None else activation(result)
        if activity_regularizer is not None:
            v1.add_to_collection(v1.GraphKeys.REGULARIZATION_LOSSES, activity_regularizer(result))
        return result


def dropout(inputs, rate=0.5, noise_shape=None, seed=None, training=False, name=None):
    """TensorFlow 1's `tf.layers.dropout`.

    Args:
        inputs: a float tensor.
        rate: the share of elements that become 0; the others are divided by 1 - rate.
        noise_shape, seed: see `tf.nn.dropout`.
        training: a bool or a scalar bool tensor; False: `inputs` are returned as they are.
        name: of the ops.

    Returns:
        A tensor like `inputs`.
    """
    with tf.name_scope(name or "dropout"):
        return _if(
            training,
            lambda: tf.nn.dropout(inputs, rate, noise_shape, seed),
            lambda: tf.identity(inputs),
        )


def batch_normalization(
    inputs,
    axis=-1,
    momentum=0.99,
    epsilon=1e-3,
    center=True,
    scale=True,
    beta_initializer=None,
    gamma_initializer=None,
    moving_mean_initializer=None,
    moving_variance_initializer=None,
    training=False,
    trainable=True,
    name=None,
    reuse=None,
):
    """TensorFlow 1's `tf.layers.batch_normalization`.

    The ops that move the mean and the variance are in `tf.GraphKeys.UPDATE_OPS`. Variables of
    inputs of float16 and bfloat16 are float32.

    Args:
        inputs: a float tensor [..., width]; its width must be known.
        axis: the axis that is not averaged over: the last one.
        momentum: the share of the moving mean and variance that a step keeps.
        epsilon: added to the variance.
        center, scale: whether there are "beta", which is added, and "gamma", which is a factor.
        beta_initializer, gamma_initializer, moving_mean_initializer, moving_variance_initializer:
            of the variables; None: zeros, ones, zeros and ones.
        training: a bool or a scalar bool tensor: whether the batch's mean and variance are taken.
        trainable: whether optimizers train beta and gamma.
        name: of the variable scope; None: "batch_normalization".
        reuse: see `tf.variable_scope`.

    Returns:
        A tensor like `inputs`.

    Raises:
        ValueError: another axis, or an unknown width.
    """
    inputs = tf.convert_to_tensor(inputs)
    if axis not in (-1, inputs.shape.rank - 1):
        raise ValueError(f"batch_normalization: expected axis to be the last one, -1, got {axis}")
    width = [_width(inputs, "batch_normalization")]
    zeros, ones = v1.zeros_initializer(), v1.ones_initializer()
    dtype = tf.float32 if inputs.dtype in (tf.float16, tf.bfloat16) else inputs.dtype
    with v1.variable_scope(name, "batch_normalization", [inputs], reuse=reuse) as scope:

        def make(variable, initializer, trained):
            return v1.get_variable(variable, width, dtype, initializer, trainable=trained)

        gamma = make("gamma", gamma_initializer or ones, trainable) if scale else None
        beta = make("beta", beta_initializer or zeros, trainable) if center else None
        scope.set_partitioner(None)  # averages are updated whole
        moving_mean = make("moving_mean", moving_mean_initializer or zeros, False)
        moving_variance = make("moving_variance", moving_variance_initializer or ones, False)
        moving = [moving_mean, moving_variance]
        values = tf.cast(inputs, dtype)
        of_batch = tf.nn.moments(values, list(range(inputs.shape.rank - 1)))
        used = _if(training, lambda: of_batch, lambda: [value.read_value() for value in moving])
        if training is not False:
            _move(moving, used, _if(training, lambda: 1.0 - momentum, lambda: 0.0))
        mean, variance = used
        result = tf.nn.batch_normalization(values, mean, variance, beta, gamma, epsilon)
        return tf.cast(result, inputs.dtype)


def _move(variables, values, share):
    """Has UPDATE_OPS move variables by a share of the way to values."""
    for variable, value in zip(variables, values):
        step = (variable.read_value() - value) * tf.cast(share, value.dtype)
        v1.add_to_collection(
            v1.GraphKeys.UPDATE_OPS, v1.assign_sub(variable, step, name="AssignMovingAvg")
        )


def _if(condition, then, otherwise):
    if isinstance(condition, tf.Tensor):
        return v1.cond(condition, then, otherwise)
    return then() if condition else otherwise()


def _width(inputs, layer):
    if inputs.shape.rank is None or inputs.shape.rank < 2 or inputs.shape[-1] is None:
        raise ValueError(
            f"{layer}: expected inputs of two or more axes whose last one is known, got shape "
            f"{inputs.shape}"
        )
    return inputs.shape[-1]
