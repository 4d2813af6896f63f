"""Optimizers of tf.compat.v1.train, in graphs and eagerly."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from group_embedding.optimizers.dense_variables import update_together
from group_embedding.optimizers.trained_tables import (
    Table,
    check_keyed,
    claim_tables,
    is_table_gradient,
    update_tables,
)
from group_embedding.variables import EmbeddingVariable


class WrappedV1:
    """Mixed into a stock class: gradients of tables and of other variables are put aside where
    stock applies them one by one, and applied together when stock finishes the step."""

    _ge_waiting = ()  # of tables
    _ge_waiting_dense = ()  # of other variables, each with stock's method for it
    _ge_dense_statement: Callable | None = None  # of dense_statements.py
    _ge_keyed_alone = False  # native ops update EmbeddingVariables, and stock's all other tables

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        grads_and_vars = list(grads_and_vars)
        claim_tables(variable for _, variable in grads_and_vars)
        check_keyed(grads_and_vars)
        return super().apply_gradients(grads_and_vars, *args, **kwargs)

    def _prepare(self):
        super()._prepare()
        self._ge_waiting, self._ge_waiting_dense = [], []

    def _resource_apply_dense(self, grad, handle):
        return self._ge_put_dense_aside(grad, handle, super()._resource_apply_dense)

    def _apply_dense(self, grad, var):
        return self._ge_put_dense_aside(grad, var, super()._apply_dense)

    def _ge_put_dense_aside(self, gradient, variable, apply):
        # Stock applies a constraint right after its own update.
        is_constrained = getattr(variable, "constraint", None) is not None
        if self._ge_dense_statement is None or is_constrained or tf.distribute.has_strategy():
            return apply(gradient, variable)
        self._ge_waiting_dense.append((gradient, variable, apply))
        return tf.no_op()

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
        updates = self._ge_update_dense() + self._ge_update(waiting)
        return super()._finish(list(update_ops) + updates, name_scope)

    def _ge_update_dense(self):
        waiting, self._ge_waiting_dense = self._ge_waiting_dense, []
        apply_of = {id(variable): apply for _, variable, apply in waiting}
        pairs = [(gradient, variable) for gradient, variable, _ in waiting]
        left, updates = update_together(
            self._ge_dense_statement, pairs, lambda name, v: self._ge_slot_of(v)(name)
        )
        for gradient, variable in left:
            with tf.compat.v1.colocate_with(variable):
                updates.append(apply_of[id(variable)](gradient, variable))
        return updates

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
        return self._ge_apply(pairs, self._ge_statement()) if pairs else []

    def _ge_apply(self, pairs, statement):
        tables = [
            Table(gradient, variable, tuple(map(self._ge_slot_of(variable), statement.slots)))
            for gradient, variable in pairs
        ]
        return update_tables(self.get_name(), tables, statement, self._ge_settings)

    def _ge_slot_of(self, variable):
        return lambda name: None if name is None else self.get_slot(variable, name)
