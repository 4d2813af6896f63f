"""LossScaleOptimizers, of mixed precision in float16: what they ask gradients.

One skips a step, and lowers the scale of the loss, when a gradient is infinite or NaN; else it has
the optimizer inside apply them. Where that says so itself (`_ge_overflow`), it is given the answer,
one number, in the place of the gradients.
"""

import functools

import tensorflow as tf

from group_embedding.ops.overflow import overflow


def loss_scale_kinds():
    """The classes: of Keras 3; or of Keras 2, one for legacy optimizers and one for others, made by
    the name of what they derive from; and of TensorFlow 1."""
    keras = tf.keras.mixed_precision.LossScaleOptimizer
    of_keras = [keras] if _is_of_keras_3(keras) else keras.__subclasses__()
    return [*of_keras, tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer]


def _is_of_keras_3(kind):
    return hasattr(kind, "check_finite")


def is_loss_scale(optimizer):
    return isinstance(optimizer, tuple(loss_scale_kinds()))


def inside(loss_scale):
    """The optimizer that a LossScaleOptimizer is around; None while it is made."""
    return getattr(loss_scale, "inner_optimizer", getattr(loss_scale, "_optimizer", None))


def nan_if_any(grads):
    """0, or NaN where one of `grads`, tensors, IndexedSlices or None, is infinite or NaN."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads if g is not None]
    if any(isinstance(grad, tf.IndexedSlices) for grad in grads):
        return overflow(values)
    # A model without tables may be compiled by XLA, which takes stock ops alone.
    are_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])
    return tf.where(are_finite, 0.0, float("nan"))


@functools.cache  # once
def let_loss_scales_ask():
    """From now on, LossScaleOptimizers ask the optimizer inside, if it has `_ge_overflow`: also
    those that `compile` makes."""
    for kind in loss_scale_kinds():
        if _is_of_keras_3(kind):
            kind.check_finite = _asking_of_keras_3(kind.check_finite)
        else:
            kind.apply_gradients = _asking(kind.apply_gradients)


def _asking_of_keras_3(check_finite):
    @functools.wraps(check_finite)
    def check_overflow(loss_scale, grads):
        ask = getattr(inside(loss_scale), "_ge_overflow", None)
        return check_finite(loss_scale, [ask(grads)] if ask else grads)

    return check_overflow


def _asking(apply_gradients):
    @functools.wraps(apply_gradients)
    def apply_gradients_or_skip(loss_scale, *args, **kwargs):
        ask = getattr(inside(loss_scale), "_ge_overflow", None)
        scale = loss_scale._loss_scale
        is_dynamic = hasattr(scale, "update")  # a fixed one asks nothing
        if ask and is_dynamic and "update" not in vars(scale):
            stock = scale.update
            scale.update = lambda grads: stock([ask(grads)])
        return apply_gradients(loss_scale, *args, **kwargs)

    return apply_gradients_or_skip
