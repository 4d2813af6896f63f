"""Keras 2 starts the moving averages of `use_ema` as copies of variables. A variable of shape
[0, dim] stands in for that of a keyed table, as for its other slots."""

import functools

from group_embedding.keras_compat import IS_KERAS_3, Optimizer


@functools.cache  # once
def let_keras_2_start_averages():
    """From now on `use_ema` of Keras 2's optimizers, wrapped or just loaded, takes keyed tables.
    Keras 3 starts averages as zeros."""
    if not IS_KERAS_3:
        Optimizer.add_variable_from_reference = _starting_without_rows(
            Optimizer.add_variable_from_reference
        )


def _starting_without_rows(add_variable):
    @functools.wraps(add_variable)
    def add_variable_or_placeholder(
        optimizer, model_variable, variable_name, shape=None, initial_value=None
    ):
        if initial_value is model_variable and hasattr(model_variable, "key_dtype"):
            initial_value = None
        return add_variable(optimizer, model_variable, variable_name, shape, initial_value)

    return add_variable_or_placeholder
