"""The bases of optimizers without a stock counterpart.

Each such optimizer has a module: the update of a whole variable, a class for the Keras under
TensorFlow, a class for tf.compat.v1.train, and the public function that makes one of both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.optimizers.dense_rules import apply_dense
from group_embedding.optimizers.keras import WrappedKeras2, WrappedKeras3
from group_embedding.optimizers.trained_tables import Settings
from group_embedding.optimizers.v1 import WrappedV1

_WrappedKeras = WrappedKeras3 if IS_KERAS_3 else WrappedKeras2


def register(name):
    """A decorator of Keras classes, which are saved under the public name of the optimizer."""
    return keras.utils.register_keras_serializable("group_embedding", name)


def in_v1_graph():
    """Returns whether an optimizer is made in a graph of TensorFlow 1, such as an Estimator's."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


class _WholeVariables:
    """The update of variables with a dense gradient, below the wrapped optimizer's methods."""

    # A function of the values of a variable and its slots, its gradient, and the numbers of the
    # rule by name: returns the new values. All are float32.
    _ge_update_whole: Callable[..., list]
    # The names of the slot of each matrix [rows, dim] that is [rows, 1], and its start.
    _ge_row_slots: tuple[str, ...] = ()
    _ge_row_slot_start = 0.0


class _KerasWholeVariables(_WholeVariables):
    def update_step(self, gradient, variable, learning_rate=None):
        spec = self._ge_rule_spec()
        slots = [self._ge_slot(name, variable) for name in spec.slots]
        apply_dense(self._ge_update_whole, variable, slots, gradient, spec.hyper)

    def add_variable_from_reference(self, *args, **kwargs):
        variable, name = (*args, *kwargs.values())[:2]  # Keras 2 has other names for them
        if name not in self._ge_row_slots or len(variable.shape) != 2:
            return super().add_variable_from_reference(*args, **kwargs)
        shape = (variable.shape[0], 1)
        if IS_KERAS_3:
            path = getattr(variable, "path", variable.name).replace("/", "_").replace(":", "_")
            initializer = keras.initializers.Constant(self._ge_row_slot_start)
            return self.add_variable(shape, initializer, variable.dtype, name=f"{path}_{name}")
        start = tf.fill(shape, tf.cast(self._ge_row_slot_start, variable.dtype))
        return super().add_variable_from_reference(variable, name, initial_value=start)


class OwnKeras(_WrappedKeras, _KerasWholeVariables):  # type: ignore[valid-type, misc]
    """Mixed into the stock Keras class that has the slots. Saves the options of `wrap`."""

    def __init__(self, *args, skip_nonfinite, stochastic_rounding_seed, **kwargs):
        super().__init__(*args, **kwargs)
        self._ge_settings = Settings(skip_nonfinite, stochastic_rounding_seed)

    def get_config(self):
        config = {**super().get_config(), **dataclasses.asdict(self._ge_settings)}
        config.pop("amsgrad", None)  # no rule here has it
        return config


class OwnV1(WrappedV1, _WholeVariables):
    """Mixed into the stock class of tf.compat.v1.train that has the slots."""

    _ge_settings = Settings()

    def _create_slots(self, var_list):
        for variable in var_list:
            for name in self._ge_row_slots:
                self._ge_make_row_slot(variable, name)
        super()._create_slots(var_list)  # finds these slots made

    def _ge_make_row_slot(self, variable, name):
        shape = variable.shape if variable.shape.rank != 2 else [variable.shape[0], 1]
        self._get_or_make_slot_with_initializer(
            variable,
            tf.compat.v1.constant_initializer(self._ge_row_slot_start),
            tf.TensorShape(shape),
            variable.dtype.base_dtype,
            name,
            self._name,
        )

    def _apply_dense(self, grad, var):
        spec = self._ge_rule_spec()
        slots = [self.get_slot(var, name) for name in spec.slots]
        return apply_dense(self._ge_update_whole, var, slots, grad, spec.hyper)

    _resource_apply_dense = _apply_dense


def make_own(keras_class, v1_class, skip_nonfinite, stochastic_rounding_seed, **arguments):
    """Makes an optimizer of one of two classes: of the second in a graph of TensorFlow 1."""
    settings = Settings(skip_nonfinite, stochastic_rounding_seed)
    if not in_v1_graph():
        return keras_class(**arguments, **dataclasses.asdict(settings))
    optimizer = v1_class(**arguments)
    optimizer._ge_settings = settings
    return optimizer
