"""LossScaleOptimizers, of mixed precision in float16: what they ask gradients, and what they do
with the answer.

One skips a step, and lowers the scale of the loss, when a gradient is infinite or NaN; else it has
the optimizer inside apply them. Where that says so itself (`_ge_overflow`), it is given the answer,
one number, in the place of the gradients.

Keras asks on the host, and goes on in a branch, of whose inputs nothing can be fused with what made
them. The update of tables divides by the scale, and leaves tables as they are where the answer says
so, by itself: with Keras 3 it stays outside, where the optimizer inside can
(`_ge_updates_alone`).
"""

import contextlib
import functools

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from group_embedding.ops.deferred import defer_structure, is_deferring
from group_embedding.ops.overflow import overflow
from group_embedding.optimizers.trained_tables import tensors_that_overflow


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
    if not control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
        return overflow(values)
    # It takes stock ops alone, of a model without tables.
    are_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])
    return tf.where(are_finite, 0.0, float("nan"))


@functools.cache  # once
def let_loss_scales_ask():
    """From now on, LossScaleOptimizers ask the optimizer inside, if it has `_ge_overflow`: also
    those that `compile` makes."""
    for kind in loss_scale_kinds():
        if _is_of_keras_3(kind):
            kind.check_finite = _asking_of_keras_3(kind.check_finite)
            kind._common_apply = _updating_tables_outside(kind._common_apply)
        else:
            kind.apply_gradients = _asking(kind.apply_gradients)


def _asking_of_keras_3(check_finite):
    @functools.wraps(check_finite)
    def check_overflow(loss_scale, grads):
        if hasattr(loss_scale, "_ge_answer"):
            with tf.device("/CPU:0"):
                return check_finite(loss_scale, [loss_scale._ge_answer])
        ask = getattr(inside(loss_scale), "_ge_overflow", None)
        return check_finite(loss_scale, [ask(grads)] if ask else grads)

    return check_overflow


def _updating_tables_outside(common_apply):
    @functools.wraps(common_apply)
    def apply_others(loss_scale, grads, trainable_variables=None):
        variables = trainable_variables
        if variables is None:
            variables = loss_scale._trainable_variables
        if is_deferring():
            return _defer_apply(grads, lambda grads: apply_others(loss_scale, grads, variables))
        optimizer = inside(loss_scale)
        alone = getattr(optimizer, "_ge_updates_alone", lambda *pair: False)
        tables = [pair for pair in zip(grads, variables) if alone(*pair)]
        others = [pair for pair in zip(grads, variables) if not alone(*pair)]
        if not tables or all(gradient is None for gradient, _ in others):
            return common_apply(loss_scale, grads, trainable_variables)  # it wants a gradient
        gradients, variables = map(list, zip(*others))
        asked = tensors_that_overflow([gradient for gradient, _ in tables])
        nan = optimizer._ge_overflow(asked + gradients)
        with tf.device("/CPU:0"):
            answer = tf.identity(nan)
        # Launched no earlier, it keeps a GPU at work while the host launches what is in the branch.
        with tf.control_dependencies([answer]):
            optimizer._ge_update(
                tables,
                gradient_scale=1.0 / tf.convert_to_tensor(loss_scale.dynamic_scale),
                apply=tf.cast(tf.equal(nan, 0.0), tf.float32),
            )
        with _answered(loss_scale, answer):
            return common_apply(loss_scale, gradients, variables)

    return apply_others


@contextlib.contextmanager
def _answered(loss_scale, answer):
    """Inside, a LossScaleOptimizer of Keras 3 that asks whether gradients overflow gets this."""
    loss_scale._ge_answer = answer
    try:
        yield
    finally:
        del loss_scale._ge_answer


def _defer_apply(gradients, apply):
    """Has all gradients applied after the XLA program that computed them: whether the step is made
    at all depends on those of tables, too."""
    parts = [
        (g.values, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else (g,)
        for g in gradients
    ]

    def run(parts):
        apply([tf.IndexedSlices(*part) if len(part) == 3 else part[0] for part in parts])

    defer_structure("the update by a LossScaleOptimizer", run, parts)


def _asking(apply_gradients):
    @functools.wraps(apply_gradients)
    def apply_gradients_or_skip(loss_scale, *args, **kwargs):
        if is_deferring():
            gradients, variables = zip(*args[0])

            def apply_now(grads):
                pairs = list(zip(grads, variables))
                apply_gradients_or_skip(loss_scale, pairs, *args[1:], **kwargs)

            return _defer_apply(gradients, apply_now)
        ask = getattr(inside(loss_scale), "_ge_overflow", None)
        scale = loss_scale._loss_scale
        is_dynamic = hasattr(scale, "update")  # a fixed one asks nothing
        if ask and is_dynamic and "update" not in vars(scale):
            stock = scale.update
            scale.update = lambda grads: stock([ask(grads)])
        return apply_gradients(loss_scale, *args, **kwargs)

    return apply_gradients_or_skip
