"""Optimizers of tf.keras.optimizers.legacy."""

from __future__ import annotations

import tensorflow as tf

from group_embedding.optimizers.slot_types import has_slot_dtype, slots_made_of
from group_embedding.optimizers.trained_tables import (
    Table,
    check_keyed,
    claim_tables,
    is_table_gradient,
    sum_rows_of_tables,
    update_tables,
)


class WrappedKerasLegacy:
    """Mixed into a stock class: tables are updated before stock applies the other gradients."""

    @tf.autograph.experimental.do_not_convert  # as stock's, whose package AutoGraph knows
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        grads_and_vars = list(grads_and_vars)
        claim_tables(variable for _, variable in grads_and_vars)
        check_keyed(grads_and_vars)
        return super().apply_gradients(grads_and_vars, *args, **kwargs)

    def add_slot(self, var, slot_name, *args, **kwargs):
        if not has_slot_dtype(var, slot_name):
            return super().add_slot(var, slot_name, *args, **kwargs)
        with slots_made_of(var):
            return super().add_slot(var, slot_name, *args, **kwargs)

    def _transform_gradients(self, grads_and_vars):
        if self.clipnorm is not None or self.global_clipnorm is not None:
            gradients, variables = zip(*grads_and_vars)
            summed = zip(sum_rows_of_tables(gradients), variables)
            return super()._transform_gradients(list(summed))
        if not self._ge_clips_by_value():
            return super()._transform_gradients(grads_and_vars)
        # The rule limits the gradients of rows.
        grads_and_vars = list(grads_and_vars)
        others = [pair for pair in grads_and_vars if not is_table_gradient(pair[0])]
        clipped = iter(super()._transform_gradients(others))
        return [pair if is_table_gradient(pair[0]) else next(clipped) for pair in grads_and_vars]

    def _distributed_apply(self, distribution, grads_and_vars, apply_state, name):
        if tf.distribute.has_strategy():
            return super()._distributed_apply(distribution, grads_and_vars, apply_state, name)
        # A constraint is stock's to apply, and on a table to refuse.
        tables, others = [], []
        for pair in grads_and_vars:
            is_table = is_table_gradient(pair[0]) and pair[1].constraint is None
            (tables if is_table else others).append(pair)
        updates = self._ge_update(tables)
        with tf.control_dependencies([update for update in updates if update is not None]):
            return super()._distributed_apply(distribution, others, apply_state, name)

    def _ge_slot(self, name, variable):
        return self.get_slot(variable, name)

    def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices, **kwargs):
        gradient = tf.IndexedSlices(grad, indices)
        if not is_table_gradient(gradient):
            return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices, **kwargs)
        # With a strategy: this is one replica of the variable.
        return tf.group(self._ge_update([(gradient, handle)]))

    def _ge_clips_by_value(self):
        return self.clipvalue is not None and self.clipnorm is None and self.global_clipnorm is None

    def _ge_update(self, pairs):
        if not pairs:
            return []
        spec = self._ge_rule_spec()
        tables = [
            Table(
                gradient,
                variable,
                tuple(name and self._ge_slot(name, variable) for name in spec.slots),
            )
            for gradient, variable in pairs
        ]
        clip_value = self.clipvalue if self._ge_clips_by_value() else None
        step = self.iterations
        return update_tables(self._name, tables, spec, self._ge_settings, step, clip_value)
