"""The classes that all optimizers derive from, and a change of a method of them all."""

import contextlib
import sys

import tensorflow as tf

from group_embedding.optimizers.loss_scale import loss_scale_kinds

# `tf.keras.optimizers`, whatever a script puts there later, as `sok.init` does.
KERAS = tf.keras.optimizers


def legacy_optimizers():
    """The module of Keras's legacy optimizers: of Keras 2 or, beside Keras 3, where names of the
    module only say that they are gone, of the package tf_keras. None: a script has imported none.
    """
    package = sys.modules.get("tf_keras")
    for keras in (KERAS, getattr(package, "optimizers", None)):
        legacy = getattr(keras, "legacy", None)
        if hasattr(getattr(legacy, "Optimizer", None), "apply_gradients"):
            return legacy
    return None


def optimizer_bases():
    """The base classes of optimizers: TensorFlow 1's, Keras', and that of legacy optimizers if
    there are any."""
    bases = [tf.compat.v1.train.Optimizer, KERAS.Optimizer]
    legacy = legacy_optimizers()
    return bases if legacy is None else [*bases, legacy.Optimizer]


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
