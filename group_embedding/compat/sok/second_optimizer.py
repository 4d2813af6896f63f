"""A second optimizer with the settings of a first, which counts its own steps.

SOK's scripts train tables by `OptimizerWrapper(optimizer)` and other variables by `optimizer`: each
of both takes one step where the script takes one.
"""

import copy
import re

import tensorflow as tf

from group_embedding.optimizers import stock_class


def second_optimizer(optimizer):
    """An optimizer of the same class, with the same settings, without slots, and with the learning
    rate of `optimizer` also when that is set later."""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _of_v1(optimizer)
    return _of_legacy(optimizer) if hasattr(optimizer, "_hyper") else _of_keras(optimizer)


def _of_v1(optimizer):
    same = copy.copy(optimizer)
    same._slots, same._non_slot_dict, same._deferred_slot_restorations = {}, {}, {}
    for name in [name for name in vars(same) if name.startswith("_self_")]:
        delattr(same, name)  # what `optimizer` is tracked with
    return same


def _of_legacy(optimizer):
    optimizer._create_hypers()
    same = stock_class(optimizer).from_config(optimizer.get_config())
    same._hyper, same._hypers_created = optimizer._hyper, True
    for name, value in same._hyper.items():
        if isinstance(value, tf.Variable):  # saved with each of both
            same._track_trackable(value, name, overwrite=True)
    return same


def _of_keras(optimizer):
    config = optimizer.get_config()
    # Tables found by key keep slots under the optimizer's name. Keras 3 numbers those of a process.
    config["name"] = re.sub(r"_\d+$", "", config["name"])
    if hasattr(optimizer, "_untrack_variable") and hasattr(optimizer._learning_rate, "assign"):
        # Keras 3 would make a variable of a number, not of a callable, and save both; and what has
        # untracked one cannot be saved.
        config["learning_rate"] = float
    same = stock_class(optimizer).from_config(config)
    same._learning_rate = optimizer._learning_rate
    return same
