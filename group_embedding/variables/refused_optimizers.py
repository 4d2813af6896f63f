"""Keras's optimizers that are not wrapped, and keyed tables: refused in words, before the optimizer
fails on its own slots of shape [0, dim]."""

import functools

from group_embedding.keras_compat import IS_KERAS_3, Optimizer


@functools.cache  # once
def have_keras_refuse():
    """From now on, stock optimizers of Keras refuse keyed tables when they apply gradients. (Those
    of TensorFlow 1, and Keras's legacy ones, ask for a variable's `constraint` first, which
    refuses.)"""
    if IS_KERAS_3:
        Optimizer.apply = _refusing_of_keras_3(Optimizer.apply)
    else:
        Optimizer.apply_gradients = _refusing_of_keras_2(Optimizer.apply_gradients)


def _refusing_of_keras_3(apply):
    @functools.wraps(apply)
    def apply_or_refuse(optimizer, grads, trainable_variables=None):
        variables = trainable_variables
        if variables is not None:
            variables = trainable_variables = list(variables)
        _check(optimizer, optimizer._trainable_variables if variables is None else variables)
        return apply(optimizer, grads, trainable_variables)

    return apply_or_refuse


def _refusing_of_keras_2(apply_gradients):
    @functools.wraps(apply_gradients)
    def apply_or_refuse(optimizer, grads_and_vars, *args, **kwargs):
        grads_and_vars = list(grads_and_vars)
        _check(optimizer, [variable for _, variable in grads_and_vars])
        return apply_gradients(optimizer, grads_and_vars, *args, **kwargs)

    return apply_or_refuse


def _check(optimizer, variables):
    if hasattr(optimizer, "_ge_rule_spec") or hasattr(optimizer, "inner_optimizer"):
        return  # wrapped, or around one that is asked itself
    for variable in variables:
        variable = getattr(variable, "_value", variable)  # of Keras 3
        if hasattr(variable, "refuse_optimizer"):
            variable.refuse_optimizer()
