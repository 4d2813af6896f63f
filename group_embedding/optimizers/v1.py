"""Optimizers of tf.compat.v1.train, in graphs and eagerly."""

from __future__ import annotations

import tensorflow as tf

from group_embedding.optimizers.slot_types import has_slot_dtype, slot_dtype_of, slots_made_of
from group_embedding.optimizers.trained_tables import (
    Table,
    check_keyed,
    claim_tables,
    is_table_gradient,
    update_tables,
)
from group_embedding.variables import EmbeddingVariable


class WrappedV1:
    """Mixed into a stock class: gradients of tables are put aside where stock applies them one by
    one, and applied together when stock finishes the step."""

    _ge_waiting = ()  # of tables
    _ge_keyed_alone = False  # native ops update EmbeddingVariables, and stock's all other tables

    @tf.autograph.experimental.do_not_convert  # as stock's, whose package AutoGraph knows
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        grads_and_vars = list(grads_and_vars)
        claim_tables(variable for _, variable in grads_and_vars)
        check_keyed(grads_and_vars)
        return super().apply_gradients(grads_and_vars, *args, **kwargs)

    def _zeros_slot(self, var, slot_name, op_name):
        if not has_slot_dtype(var, slot_name):
            return super()._zeros_slot(var, slot_name, op_name)
        zeros = tf.compat.v1.zeros_initializer()
        return self._get_or_make_slot_with_initializer(
            var, zeros, var.shape, slot_dtype_of(var), slot_name, op_name
        )

    def _get_or_make_slot_with_initializer(
        self, var, initializer, shape, dtype, slot_name, op_name
    ):
        make = super()._get_or_make_slot_with_initializer
        if not has_slot_dtype(var, slot_name):
            return make(var, initializer, shape, dtype, slot_name, op_name)
        with slots_made_of(var):
            return make(var, initializer, shape, slot_dtype_of(var), slot_name, op_name)

    def _create_or_restore_slot_variable(self, slot_variable_position, slot_name, variable):
        restore = super()._create_or_restore_slot_variable
        if not has_slot_dtype(variable, slot_name):
            return restore(slot_variable_position, slot_name, variable)
        # Stock would make the slot in the type of the file; in a scope it waits for the optimizer.
        with slots_made_of(variable):
            return restore(slot_variable_position, slot_name, variable)

    def _prepare(self):
        super()._prepare()
        self._ge_waiting = []

    def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices):
        gradient = tf.IndexedSlices(grad, indices)
        if not self._ge_updates(gradient, handle):
            return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)
        return self._ge_put_aside(gradient, handle)

    def _apply_sparse_duplicate_indices(self, grad, var):
        if not self._ge_updates(grad, var):
            return super()._apply_sparse_duplicate_indices(grad, var)
        return self._ge_put_aside(grad, var)

    def _finish(self, update_ops, name_scope):
        waiting, self._ge_waiting = self._ge_waiting, []
        return super()._finish(list(update_ops) + self._ge_update(waiting), name_scope)

    def _ge_updates(self, gradient, variable):
        """Returns whether the variable is a table that native ops update."""
        if self._ge_keyed_alone and not isinstance(variable, EmbeddingVariable):
            return False
        return is_table_gradient(gradient)

    def _ge_put_aside(self, gradient, variable):
        if tf.distribute.has_strategy():  # this is one replica of the variable
            return tf.group(self._ge_update([(gradient, variable)]))
        self._ge_waiting.append((gradient, variable))
        return tf.no_op()

    def _ge_update(self, pairs):
        return self._ge_apply(pairs, self._ge_rule_spec()) if pairs else []

    def _ge_apply(self, pairs, spec):
        tables = [
            Table(gradient, variable, tuple(map(self._ge_slot_of(variable), spec.slots)))
            for gradient, variable in pairs
        ]
        return update_tables(self.get_name(), tables, spec, self._ge_settings)

    def _ge_slot_of(self, variable):
        return lambda name: None if name is None else self.get_slot(variable, name)
