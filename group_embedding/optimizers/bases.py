"""The classes that all optimizers derive from, and a change of a method of them all."""

import contextlib

import tensorflow as tf

from group_embedding.optimizers.loss_scale import loss_scale_kinds

# `tf.keras.optimizers`, whatever a script puts there later, as `sok.init` does.
KERAS = tf.keras.optimizers


def optimizer_bases():
    """That of TensorFlow 1, that of Keras and, in Keras 2, that of its legacy optimizers."""
    bases = [tf.compat.v1.train.Optimizer, KERAS.Optimizer]
    legacy = getattr(getattr(KERAS, "legacy", None), "Optimizer", None)
    if hasattr(legacy, "apply_gradients"):  # in Keras 3 it only says that it is gone
        bases.append(legacy)
    return bases


@contextlib.contextmanager
def changed_method(name, change):
    """Inside, in any thread, the method `name` of every optimizer is another.

    Args:
        change: a function of the stock method, which returns the one in its place. It is called
            once for each of `optimizer_bases`, and of LossScaleOptimizers with one of their own.
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
