"""DeepRec's optimizers that TensorFlow lacks: `tf.compat.v1.train.Optimizer`s under its names."""

from __future__ import annotations

import tensorflow as tf

from group_embedding.arguments import check_positive
from group_embedding.optimizers import (
    RuleSpec,
    Settings,
    WrappedV1,
    apply_dense,
    apply_sparse,
    v1_adam,
)
from group_embedding.types import Hyperparameter

v1 = tf.compat.v1


class AdagradDecayOptimizer(WrappedV1, tf.compat.v1.train.Optimizer):
    """Adagrad whose accumulators shrink once in a while, so that learning does not die out.

    With a the accumulator, g the gradient and n how often a has shrunk, for each element of each
    row that a step trains, and of each other variable as a whole:

        where n < (global_step + 1) // accumulator_decay_step:
            a <- max(a * accumulator_decay_rate, initial_accumulator_value);  n <- n + 1
        a <- a + g^2;  x <- x - learning_rate * g / sqrt(a)

    A row that was not trained for several decays makes up for one in each step that trains it.
    Tables, also EmbeddingVariables, are updated natively; the slots "accumulator" and
    "accumulator_decay_power" (n) are float32 of the variable's shape.

    Args:
        learning_rate: a number, a tensor or a callable.
        global_step: the variable that counts steps, one of an integer type.
        initial_accumulator_value: positive; what accumulators start as and do not shrink below.
        accumulator_decay_step: positive; after how many steps accumulators shrink.
        accumulator_decay_rate: between 0 and 1; what they are multiplied by.
        use_locking: has no effect: updates of a variable always exclude each other.
        name: of the optimizer.

    Raises:
        ValueError: one of these numbers is out of its range.

    Example:

    >>> step = tf.Variable(0, dtype=tf.int64)
    >>> table = tf.Variable([[1., 2.]])
    >>> optimizer = ge.optimizers.AdagradDecayOptimizer(
    ...     1.0, step, initial_accumulator_value=3.0, accumulator_decay_step=10)
    >>> gradient = tf.IndexedSlices(tf.constant([[1., 1.]]), tf.constant([0]))
    >>> _ = optimizer.apply_gradients([(gradient, table)], global_step=step)
    >>> table.numpy().tolist()
    [[0.5, 1.5]]
    """

    _ge_settings = Settings()

    def __init__(
        self,
        learning_rate: Hyperparameter,
        global_step: tf.Variable,
        initial_accumulator_value: float = 0.1,
        accumulator_decay_step: int = 100000,
        accumulator_decay_rate: float = 0.9,
        use_locking: bool = False,
        name: str = "AdagradDecay",
    ) -> None:
        check_positive("initial_accumulator_value", initial_accumulator_value)
        check_positive("accumulator_decay_step", accumulator_decay_step)
        if not 0 < accumulator_decay_rate < 1:
            raise ValueError(
                "accumulator_decay_rate: expected a number between 0 and 1, got "
                f"{accumulator_decay_rate}"
            )
        super().__init__(use_locking, name)
        self._learning_rate, self._global_step = learning_rate, global_step
        self._initial_accumulator_value = initial_accumulator_value
        self._accumulator_decay_step = accumulator_decay_step
        self._accumulator_decay_rate = accumulator_decay_rate

    def _create_slots(self, var_list):
        starts = {
            "accumulator": self._initial_accumulator_value,
            "accumulator_decay_power": 0.0,
        }
        for variable in var_list:
            for name, start in starts.items():
                initializer = v1.constant_initializer(start, dtype=tf.float32)
                self._get_or_make_slot_with_initializer(
                    variable, initializer, variable.shape, tf.float32, name, self._name
                )

    def _prepare(self):
        super()._prepare()
        rate = self._call_if_callable(self._learning_rate)
        step = tf.cast(tf.convert_to_tensor(self._global_step), tf.int64) + 1
        decays_due = tf.math.floordiv(step, tf.cast(self._accumulator_decay_step, tf.int64))
        self._hyper = {
            "learning_rate": tf.cast(tf.convert_to_tensor(rate, name="learning_rate"), tf.float32),
            "accumulator_decay_rate": self._accumulator_decay_rate,
            "accumulator_floor": self._initial_accumulator_value,
            "decays_due": tf.cast(decays_due, tf.float32),
        }

    def _ge_rule_spec(self):
        starts = {"accumulator": self._initial_accumulator_value}
        slots = ("accumulator", "accumulator_decay_power")
        return RuleSpec("adagrad_decay", slots, self._hyper, starts)

    def _apply_dense(self, grad, var):
        return apply_dense(_adagrad_decay, var, self._slots_of(var), grad, self._hyper)

    _resource_apply_dense = _apply_dense

    def _resource_apply_sparse(self, grad, var, indices):
        return apply_sparse(_adagrad_decay, var, self._slots_of(var), grad, indices, self._hyper)

    def _apply_sparse(self, grad, var):
        return self._resource_apply_sparse(grad.values, var, grad.indices)

    def _slots_of(self, var):
        return [self.get_slot(var, name) for name in ("accumulator", "accumulator_decay_power")]


class AdamAsyncOptimizer(WrappedV1, tf.compat.v1.train.AdamOptimizer):
    """Adam whose moments move only for rows that a step trains.

    DeepRec counts the steps of each variable apart, for workers that do not wait for each other.
    Here all variables are trained by the same steps, so that one count, `beta1_power` and
    `beta2_power`, serves all. With m and v the moments of a row, g its gradient and t the step:

        m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
        x <- x - learning_rate sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon)

    With `apply_sparse_rmsprop`, rows (and not variables with a dense gradient) are updated by

        v <- beta2 v + (1 - beta2) g^2
        m <- beta1 m + learning_rate g / sqrt(v + epsilon);  x <- x - m

    Args:
        learning_rate, beta1, beta2, epsilon: numbers, tensors or callables.
        use_locking: has no effect: updates of a variable always exclude each other.
        apply_sparse_rmsprop: see above.
        name: of the optimizer.

    Example:

    >>> table = tf.Variable([[1., 2.]])
    >>> optimizer = ge.optimizers.AdamAsyncOptimizer(0.5, epsilon=0.0)
    >>> gradient = tf.IndexedSlices(tf.constant([[3., -4.]]), tf.constant([0]))
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> table.numpy().round(3).tolist()
    [[0.5, 2.5]]
    """

    _ge_settings = Settings()

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        apply_sparse_rmsprop: bool = False,
        name: str = "AdamAsync",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._apply_sparse_rmsprop = apply_sparse_rmsprop

    def _ge_rule_spec(self):
        if not self._apply_sparse_rmsprop:
            return v1_adam(self)
        hyper = {
            "learning_rate": self._lr_t,
            "rho": self._beta2_t,
            "momentum": self._beta1_t,
            "epsilon_in_root": self._epsilon_t,
        }
        return RuleSpec("rmsprop", ("v", "m", None), hyper)

    def _resource_apply_sparse(self, grad, var, indices):
        spec = self._ge_rule_spec()
        rule = _rmsprop if self._apply_sparse_rmsprop else _adam
        slots = [self.get_slot(var, name) for name in spec.slots if name is not None]
        return apply_sparse(rule, var, slots, grad, indices, spec.hyper)

    def _apply_sparse(self, grad, var):
        return self._resource_apply_sparse(grad.values, var, grad.indices)


def _adagrad_decay(x, accumulator, num_decays, g, hyper):
    due = num_decays < hyper["decays_due"]
    shrunk = accumulator * hyper["accumulator_decay_rate"]
    decayed = tf.maximum(shrunk, hyper["accumulator_floor"])
    accumulator = tf.where(due, decayed, accumulator) + g * g
    x -= hyper["learning_rate"] * g / tf.sqrt(accumulator)
    return [x, accumulator, num_decays + tf.cast(due, tf.float32)]


def _adam(x, m, v, g, hyper):
    hyper = {name: tf.cast(value, tf.float32) for name, value in hyper.items()}
    m = hyper["beta_1"] * m + (1 - hyper["beta_1"]) * g
    v = hyper["beta_2"] * v + (1 - hyper["beta_2"]) * g * g
    rate = hyper["learning_rate"] * tf.sqrt(1 - hyper["beta_2_power"])
    rate /= 1 - hyper["beta_1_power"]
    return [x - rate * m / (tf.sqrt(v) + hyper["epsilon"]), m, v]


def _rmsprop(x, v, m, g, hyper):
    hyper = {name: tf.cast(value, tf.float32) for name, value in hyper.items()}
    v = hyper["rho"] * v + (1 - hyper["rho"]) * g * g
    step = hyper["learning_rate"] * g / tf.sqrt(v + hyper["epsilon_in_root"])
    m = hyper["momentum"] * m + step
    return [x - m, v, m]
