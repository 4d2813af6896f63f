"""The classes that all optimizers derive from, those that scale losses, and a change of a method of
them all."""

import contextlib

import tensorflow as tf


def optimizer_bases():
    """That of TensorFlow 1, that of Keras and, in Keras 2, that of its legacy optimizers."""
    keras = tf.keras.optimizers
    bases = [tf.compat.v1.train.Optimizer, keras.Optimizer]
    legacy = getattr(getattr(keras, "legacy", None), "Optimizer", None)
    if hasattr(legacy, "apply_gradients"):  # in Keras 3 it only says that it is gone
        bases.append(legacy)
    return bases


def loss_scale_kinds():
    """The classes of LossScaleOptimizers: of Keras, in Keras 2 also for legacy optimizers, and of
    TensorFlow 1."""
    keras = tf.keras.mixed_precision.LossScaleOptimizer
    of_tensorflow_1 = tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer
    return [*(keras.__subclasses__() or [keras]), of_tensorflow_1]  # in Keras 2 none is `keras`


def is_loss_scale(optimizer):
    return isinstance(optimizer, tuple(loss_scale_kinds()))


def inside(loss_scale):
    """The optimizer that a LossScaleOptimizer is around; None while it is made."""
    return getattr(loss_scale, "inner_optimizer", getattr(loss_scale, "_optimizer", None))


@contextlib.contextmanager
def changed_method(name, change):
    """Inside, in any thread, the method `name` of every optimizer is another.

    Args:
        change: a function of the stock method, which returns the one in its place. It is called
            once for each of `optimizer_bases`, and of `loss_scale_kinds` that have one of their own.
    """
    own = [kind for kind in loss_scale_kinds() if name in vars(kind)]
    stock = [(base, getattr(base, name)) for base in [*optimizer_bases(), *own]]
    for base, method in stock:
        setattr(base, name, change(method))
    try:
        yield
    finally:
        for base, method in stock:
            setattr(base, name, method)
