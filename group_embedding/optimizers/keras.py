"""Optimizers of Keras 2.11 and later, and of Keras 3."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import tensorflow as tf

from group_embedding.lookups.lookup_table import tf_variable
from group_embedding.optimizers.averages import Averages, is_keyed, let_callbacks_swap
from group_embedding.optimizers.dense_variables import Decay, update_together
from group_embedding.optimizers.loss_scale import let_loss_scales_ask, nan_if_any
from group_embedding.optimizers.slot_types import (
    OfSlots,
    check_gradients,
    has_slot_dtype,
    slots_made_of,
)
from group_embedding.optimizers.trained_tables import (
    Table,
    check_keyed,
    claim_tables,
    is_table_gradient,
    sum_rows_of_tables,
    update_tables,
)
from group_embedding.ranks.sharding.sharded_table import exchange_of, gather_rows

_AVERAGES = "_model_variables_moving_average"


class _WrappedKeras:
    """Base of the wrapped Keras optimizers. The stock optimizer clips gradients, and updates the
    variables that `update_together` leaves; tables are updated in between. (Stock's method for
    one variable is left to the replicas of a `tf.distribute.Strategy`.)"""

    _ge_dense_rule: Callable | None = None  # of dense_formulas.py

    def build(self, variables):
        claim_tables(variables)
        let_callbacks_swap()
        return super().build(variables)

    def save_own_variables(self, store):
        values = [tf.convert_to_tensor(gather_rows(variable)) for variable in self.variables]
        for i, value in enumerate(values):  # HDF5 has no bfloat16
            is_small = value.dtype == tf.bfloat16
            store[str(i)] = (tf.cast(value, tf.float32) if is_small else value).numpy()

    def _ge_averages(self, steps):
        """The averages that `use_ema` keeps of keyed tables, after so many steps; None without
        `use_ema`."""
        if not self.use_ema:
            return None
        steps = tf.cast(tf.convert_to_tensor(steps), tf.int64)
        momentum = self.ema_momentum
        return Averages(self._ge_name, momentum, self._ge_momentum_at(steps), steps)

    def _update_model_variables_moving_average(self, variables):
        # Those of keyed tables move as tables are updated.
        with self._ge_without_keyed(variables) as others:
            super()._update_model_variables_moving_average(others)

    def _overwrite_model_variables_with_average_value(self, variables):
        self._ge_write_averages(variables, self.iterations + 1)  # in a step
        with self._ge_without_keyed(variables) as others:
            super()._overwrite_model_variables_with_average_value(others)

    def finalize_variable_values(self, variables):
        self._ge_write_averages(variables, self.iterations)
        with self._ge_without_keyed(variables) as others:
            super().finalize_variable_values(others)

    def _ge_write_averages(self, variables, steps):
        if self.use_ema:
            for variable in filter(is_keyed, variables):
                self._ge_averages(steps).write(variable)

    def _clip_gradients(self, grads):
        if self.clipnorm or self.global_clipnorm:
            return super()._clip_gradients(sum_rows_of_tables(grads))
        if not self._ge_clips_by_value():
            return super()._clip_gradients(grads)
        # The rule limits the gradients of rows.
        return _map_others(super()._clip_gradients, grads)

    def _apply_weight_decay(self, variables):
        """Waits until gradients tell which variables are tables."""

    def _ge_update_others(self, pairs):
        """Updates, of (gradient, variable) pairs that are no tables, those that one op updates, and
        decays the others. Returns the others."""
        check_gradients(pairs)
        pairs = [pair for pair in pairs if not is_table_gradient(pair[0])]
        decay = None
        if self.weight_decay is not None:
            learning_rate = tf.convert_to_tensor(self.learning_rate)
            decay = Decay(self.weight_decay, learning_rate, self._ge_decay)
        rule = None if getattr(self, "_mesh", None) else self._ge_dense_rule  # DTensor
        left = update_together(rule, pairs, self._ge_slot, decay)
        super()._apply_weight_decay([variable for _, variable in left])
        return left

    def _ge_clips_by_value(self):
        return self.clipvalue and not self.clipnorm and not self.global_clipnorm

    def _ge_update(self, pairs, **of_step):
        """Updates the tables among (gradient, variable). `of_step`: of `update_tables`."""
        check_keyed(pairs)
        pairs = [pair for pair in pairs if is_table_gradient(pair[0])]
        if not pairs:
            return
        spec = self._ge_rule_spec()
        tables = [
            Table(
                gradient,
                tf_variable(variable),
                tuple(name and self._ge_slot(name, variable) for name in spec.slots),
                self._ge_decay(variable),
            )
            for gradient, variable in pairs
        ]
        clip_value = self.clipvalue if self._ge_clips_by_value() else None
        step = tf.convert_to_tensor(self.iterations)
        update_tables(
            self._ge_name,
            tables,
            spec,
            self._ge_settings,
            step,
            clip_value,
            self._ge_averages(step + 1),
            **of_step,
        )

    @property
    def _ge_name(self):
        """Keyed tables keep its slots under this."""
        return self.name

    def _ge_decay(self, variable):
        variable = tf_variable(variable)
        if self.weight_decay is None or not self._use_weight_decay(variable):
            return 0.0
        return float(self.weight_decay)

    def _ge_slot(self, name, variable):
        return tf_variable(getattr(self, name)[self._ge_index(variable)])


class WrappedKeras2(_WrappedKeras):
    """Mixed into a stock class of Keras 2."""

    _ge_updated = frozenset()  # the ids of variables that stock is to leave as they are

    def add_variable_from_reference(self, model_variable, variable_name, *args, **kwargs):
        add = super().add_variable_from_reference
        if not has_slot_dtype(model_variable, variable_name):
            return add(model_variable, variable_name, *args, **kwargs)
        with slots_made_of(model_variable):
            return add(model_variable, variable_name, *args, **kwargs)

    def _deduplicate_sparse_grad(self, grads):
        return _map_others(super()._deduplicate_sparse_grad, grads)

    def _internal_apply_gradients(self, grads_and_vars):
        grads_and_vars = list(grads_and_vars)
        left = self._ge_update_others(grads_and_vars)
        if not tf.distribute.has_strategy():
            self._ge_update(grads_and_vars)
        # Stock is given all, as it moves their averages.
        others = {id(v) for g, v in grads_and_vars if not is_table_gradient(g)}
        self._ge_updated = frozenset(others - {id(variable) for _, variable in left})
        try:
            return super()._internal_apply_gradients(grads_and_vars)
        finally:
            self._ge_updated = frozenset()

    def _update_step_xla(self, gradient, variable, key):
        if is_table_gradient(gradient) or id(variable) in self._ge_updated:
            return self._update_step(gradient, variable)  # XLA has no such op
        return super()._update_step_xla(gradient, variable, key)

    def _update_step(self, gradient, variable):
        if id(variable) in self._ge_updated:
            return
        if not is_table_gradient(gradient):
            return super()._update_step(gradient, variable)
        if tf.distribute.has_strategy():  # else it is done
            self._ge_update([(gradient, variable)])

    def _ge_index(self, variable):
        return self._index_dict[self._var_key(variable)]

    @contextlib.contextmanager
    def _ge_without_keyed(self, variables):
        yield [variable for variable in variables if not is_keyed(variable)]

    def _ge_momentum_at(self, step):
        del step
        return self.ema_momentum


class WrappedKeras3(_WrappedKeras):
    """Mixed into a stock class of Keras 3."""

    # A LossScaleOptimizer would ask slices by a dense tensor of the table's shape; keys have none.
    _ge_overflow = staticmethod(nan_if_any)

    def build(self, variables):
        let_loss_scales_ask()  # one around this builds it first
        return super().build(variables)

    def add_variable_from_reference(self, reference_variable, name=None, *args, **kwargs):
        add = super().add_variable_from_reference
        if not has_slot_dtype(reference_variable, name):
            return add(reference_variable, name, *args, **kwargs)
        with slots_made_of(reference_variable):
            return add(OfSlots(reference_variable), name, *args, **kwargs)

    def _ge_updates_alone(self, gradient, variable):
        """Returns whether this variable is a table whose update needs none of the steps that
        `apply` does before or after."""
        if not is_table_gradient(gradient) or tf.distribute.has_strategy():
            return False
        needs = self.clipnorm, self.global_clipnorm, self.gradient_accumulation_steps
        if any(needs) or getattr(variable, "constraint", None) is not None:
            return False
        is_averaged = getattr(self, "_ge_exchange", None) and exchange_of(variable) is None
        return not is_averaged

    def _clip_gradients(self, grads):
        # Stock makes gradients dense before it takes their norm.
        if not (self.clipnorm or self.global_clipnorm) or not any(map(is_table_gradient, grads)):
            return super()._clip_gradients(grads)
        grads = sum_rows_of_tables(grads)
        if self.global_clipnorm:
            return tf.clip_by_global_norm(grads, self.global_clipnorm)[0]
        clipped = _map_others(super()._clip_gradients, grads)
        return [
            tf.clip_by_norm(grad, self.clipnorm) if is_table_gradient(grad) else grad
            for grad in clipped
        ]

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        pairs = list(zip(grads, trainable_variables))
        left = self._ge_update_others(pairs)
        if tf.distribute.has_strategy():
            left = pairs
        else:
            self._ge_update(pairs)
        if left:
            super()._backend_update_step(*map(list, zip(*left)), learning_rate)

    def update_step(self, gradient, variable, learning_rate):
        if not is_table_gradient(gradient):
            return super().update_step(gradient, variable, learning_rate)
        self._ge_update([(gradient, variable)])

    @property
    def _ge_name(self):
        # Keras 3 counts the optimizers of a process that it names: adam, adam_1. Slots are found
        # again whatever their number.
        stock, _, number = self.name.rpartition("_")
        is_counted = number.isdecimal() and stock.replace("_", "") == type(self).__name__.lower()
        return stock if is_counted else self.name

    def _ge_index(self, variable):
        return self._get_variable_index(variable)

    @contextlib.contextmanager
    def _ge_without_keyed(self, variables):
        """Gives those that are no keyed tables; inside, the list of averages is theirs alone, as
        stock goes by the order of both."""
        others = [variable for variable in variables if not is_keyed(variable)]
        averages = vars(self).get(_AVERAGES)
        if len(others) < len(variables) and averages is not None:
            pairs = zip(variables, averages)
            vars(self)[_AVERAGES] = [average for v, average in pairs if not is_keyed(v)]
        try:
            yield others
        finally:
            if averages is not None:
                vars(self)[_AVERAGES] = averages

    def _ge_momentum_at(self, step):
        # Averages are what variables are after the first step.
        return tf.where(tf.equal(step, 1), 0.0, self.ema_momentum)


def _map_others(function, grads):
    """`function` on the list of those that are not of tables, which stay as they are."""
    mapped = iter(function([grad for grad in grads if not is_table_gradient(grad)]))
    return [grad if is_table_gradient(grad) else next(mapped) for grad in grads]
