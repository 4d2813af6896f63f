"""The optimizers without a stock twin, as tf.compat.v1.train has optimizers."""

import tensorflow as tf

from group_embedding.optimizers import dense_rules
from group_embedding.optimizers.rules import Statement, v1_adam
from group_embedding.optimizers.v1 import WrappedV1


class RowwiseAdagradV1(WrappedV1, tf.compat.v1.train.AdagradOptimizer):
    """See `group_embedding.optimizers.RowwiseAdagrad`."""

    def __init__(self, learning_rate, initial_accumulator_value, epsilon, name, settings):
        super().__init__(learning_rate, initial_accumulator_value, name=name)
        self._ge_epsilon, self._ge_settings = epsilon, settings

    def _create_slots(self, var_list):
        for variable in var_list:
            _make_row_slot(self, variable, "accumulator", self._initial_accumulator_value)

    def _apply_dense(self, grad, var):
        hyper = self._ge_statement().hyper
        return dense_rules.rowwise_adagrad(var, self.get_slot(var, "accumulator"), grad, hyper)

    _resource_apply_dense = _apply_dense

    def _ge_statement(self):
        hyper = {
            "learning_rate": tf.cast(self._learning_rate_tensor, tf.float32),
            "epsilon": self._ge_epsilon,
        }
        starts = {"accumulator": self._initial_accumulator_value}
        return Statement("rowwise_adagrad", ("accumulator",), hyper, starts)


class RowwiseAdamV1(WrappedV1, tf.compat.v1.train.AdamOptimizer):
    """See `group_embedding.optimizers.RowwiseAdam`."""

    def __init__(self, learning_rate, beta_1, beta_2, epsilon, name, settings):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name)
        self._ge_settings = settings

    def _create_slots(self, var_list):
        for variable in var_list:
            _make_row_slot(self, variable, "v", 0.0)
        super()._create_slots(var_list)  # finds this slot made

    def _apply_dense(self, grad, var):
        slots = self.get_slot(var, "m"), self.get_slot(var, "v")
        return dense_rules.rowwise_adam(var, *slots, grad, self._ge_statement().hyper)

    _resource_apply_dense = _apply_dense

    def _ge_statement(self):
        hyper = {name: tf.cast(value, tf.float32) for name, value in v1_adam(self).hyper.items()}
        return Statement("rowwise_adam", ("m", "v"), hyper)


class LambV1(WrappedV1, tf.compat.v1.train.AdamOptimizer):
    """See `group_embedding.optimizers.Lamb`."""

    def __init__(self, learning_rate, beta_1, beta_2, epsilon, weight_decay, name, settings):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name)
        self._ge_weight_decay, self._ge_settings = weight_decay, settings

    def _apply_dense(self, grad, var):
        slots = self.get_slot(var, "m"), self.get_slot(var, "v")
        return dense_rules.lamb(var, *slots, grad, self._ge_statement().hyper)

    _resource_apply_dense = _apply_dense

    def _ge_statement(self):
        hyper = {name: tf.cast(value, tf.float32) for name, value in v1_adam(self).hyper.items()}
        return Statement("lamb", ("m", "v"), {**hyper, "l2": self._ge_weight_decay})


def _make_row_slot(optimizer, variable, name, start):
    """Makes a slot of shape [rows, 1] for a matrix, else of the variable's own shape."""
    shape = variable.shape if variable.shape.rank != 2 else [variable.shape[0], 1]
    optimizer._get_or_make_slot_with_initializer(
        variable,
        tf.compat.v1.constant_initializer(start),
        tf.TensorShape(shape),
        variable.dtype.base_dtype,
        name,
        optimizer._name,
    )
