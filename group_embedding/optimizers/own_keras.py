"""The optimizers without a stock twin, as the Keras under TensorFlow has optimizers."""

import tensorflow as tf

from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.optimizers import dense_rules
from group_embedding.optimizers.keras import WrappedKeras2, WrappedKeras3
from group_embedding.optimizers.rules import Statement, keras_adam
from group_embedding.optimizers.trained_tables import Settings

WrappedKeras = WrappedKeras3 if IS_KERAS_3 else WrappedKeras2
_register = keras.utils.register_keras_serializable("group_embedding")


class _Own(WrappedKeras):  # type: ignore[valid-type, misc]
    """Keeps what `wrap` keeps in a class of its own, and saves it."""

    _ge_settings = Settings()

    def get_config(self):
        return {**super().get_config(), **self._ge_settings._asdict()}


class _SlotPerRow:
    """Makes one slot of each matrix [rows, dim] as [rows, 1]."""

    _ge_row_slots: tuple[str, ...]  # its names in Keras 2 and 3
    _ge_row_slot_start = 0.0

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


class _DenseRowwiseAdagrad(_SlotPerRow, keras.optimizers.Adagrad):
    """Variables with a dense gradient."""

    _ge_row_slots = ("accumulator",)

    @property
    def _ge_row_slot_start(self):
        return self.initial_accumulator_value

    def update_step(self, gradient, variable, learning_rate=None):
        hyper = self._ge_statement().hyper
        accumulator = self._ge_slot("_accumulators", variable)
        dense_rules.rowwise_adagrad(variable, accumulator, gradient, hyper)


@_register
class RowwiseAdagrad(_Own, _DenseRowwiseAdagrad):
    """See `group_embedding.optimizers.RowwiseAdagrad`."""

    def __init__(self, learning_rate, skip_nonfinite, stochastic_rounding_seed, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self._ge_settings = Settings(skip_nonfinite, stochastic_rounding_seed)

    def _ge_statement(self):
        learning_rate = tf.cast(tf.convert_to_tensor(self.learning_rate), tf.float32)
        hyper = {"learning_rate": learning_rate, "epsilon": self.epsilon}
        starts = {"_accumulators": self.initial_accumulator_value}
        return Statement("rowwise_adagrad", ("_accumulators",), hyper, starts)


class _DenseRowwiseAdam(_SlotPerRow, keras.optimizers.Adam):
    """Variables with a dense gradient."""

    _ge_row_slots = ("v", "velocity")

    def update_step(self, gradient, variable, learning_rate=None):
        slots = self._ge_slot("_momentums", variable), self._ge_slot("_velocities", variable)
        dense_rules.rowwise_adam(variable, *slots, gradient, self._ge_statement().hyper)


@_register
class RowwiseAdam(_Own, _DenseRowwiseAdam):
    """See `group_embedding.optimizers.RowwiseAdam`."""

    def __init__(self, learning_rate, skip_nonfinite, stochastic_rounding_seed, **kwargs):
        super().__init__(learning_rate, amsgrad=False, **kwargs)
        self._ge_settings = Settings(skip_nonfinite, stochastic_rounding_seed)

    def get_config(self):
        config = super().get_config()
        del config["amsgrad"]
        return config

    def _ge_statement(self):
        return Statement("rowwise_adam", ("_momentums", "_velocities"), keras_adam(self).hyper)


class _DenseLamb(keras.optimizers.Adam):
    """Variables with a dense gradient."""

    def update_step(self, gradient, variable, learning_rate=None):
        slots = self._ge_slot("_momentums", variable), self._ge_slot("_velocities", variable)
        dense_rules.lamb(variable, *slots, gradient, self._ge_statement().hyper)


@_register
class Lamb(_Own, _DenseLamb):
    """See `group_embedding.optimizers.Lamb`."""

    def __init__(
        self, learning_rate, weight_decay, skip_nonfinite, stochastic_rounding_seed, **kwargs
    ):
        super().__init__(learning_rate, amsgrad=False, **kwargs)
        # Not Keras's, which would shrink variables apart from the trust ratio.
        self._ge_weight_decay = weight_decay
        self._ge_settings = Settings(skip_nonfinite, stochastic_rounding_seed)

    def get_config(self):
        config = {**super().get_config(), "weight_decay": self._ge_weight_decay}
        del config["amsgrad"]
        return config

    def _ge_statement(self):
        hyper = {**keras_adam(self).hyper, "l2": self._ge_weight_decay}
        return Statement("lamb", ("_momentums", "_velocities"), hyper)
