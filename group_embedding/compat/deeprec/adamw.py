"""DeepRec's AdamW: Adam with decoupled weight decay, a `tf.compat.v1.train.Optimizer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.lookups import variable_of_all
from group_embedding.optimizers import RuleSpec, Settings, WrappedV1, v1_adam
from group_embedding.ranks.sharding import parts_of
from group_embedding.types import Hyperparameter
from group_embedding.variables import EmbeddingVariable

v1 = tf.compat.v1


class AdamWOptimizer(WrappedV1, tf.compat.v1.train.AdamOptimizer):
    """Adam with decoupled weight decay (Loshchilov, Hutter 2019).

    Before Adam's step a variable shrinks by `weight_decay` of itself, whatever the learning rate
    is, and of a table the rows that the step trains alone. As DeepRec defines it, the rows of an
    EmbeddingVariable shrink by `weight_decay` times Adam's rate in step t instead,
    learning_rate sqrt(1 - beta2^t) / (1 - beta1^t).

    Args:
        weight_decay: a number, a tensor or a callable.
        learning_rate, beta1, beta2, epsilon: numbers, tensors or callables.
        use_locking: has no effect: updates of a variable always exclude each other.
        name: of the optimizer.

    Example:

    >>> table = tf.Variable([[1., 2.]])
    >>> optimizer = ge.optimizers.AdamWOptimizer(0.5, learning_rate=0.0)
    >>> gradient = tf.IndexedSlices(tf.constant([[3., -4.]]), tf.constant([0]))
    >>> _ = optimizer.apply_gradients([(gradient, table)])
    >>> table.numpy().tolist()
    [[0.5, 1.0]]
    """

    _ge_settings = Settings()
    _decayed = None

    def __init__(
        self,
        weight_decay: Hyperparameter,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._weight_decay = weight_decay

    def minimize(
        self, *args: Any, decay_var_list: Sequence[tf.Variable] | None = None, **kwargs: Any
    ) -> Any:
        """Minimizes a loss, as `tf.compat.v1.train.Optimizer` does.

        Args:
            decay_var_list: the variables that shrink; None or empty: all.
        """
        with _decaying(self, decay_var_list):
            return super().minimize(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        decay_var_list: Sequence[tf.Variable] | None = None,
    ) -> Any:
        """Applies gradients that have been computed; `decay_var_list` as in `minimize`."""
        decay_var_list = decay_var_list or self._decayed
        with _decaying(self, decay_var_list):
            return super().apply_gradients(grads_and_vars, global_step, name)

    def _prepare(self):
        super()._prepare()
        decay = self._call_if_callable(self._weight_decay)
        self._decay = tf.cast(tf.convert_to_tensor(decay, name="weight_decay"), tf.float32)

    def _ge_update(self, pairs):
        """Tables that shrink alike in one op."""
        kinds = {}
        for gradient, variable in pairs:
            kind = isinstance(variable, EmbeddingVariable), self._decays(variable)
            kinds.setdefault(kind, []).append((gradient, variable))
        ops = []
        for kind, alike in kinds.items():
            ops += self._ge_apply(alike, self._rule_spec_of(*kind))
        return ops

    def _rule_spec_of(self, is_keyed, decays):
        rule, slots, hyper, _ = v1_adam(self)
        if not decays:
            return RuleSpec(rule, slots, hyper)
        decay = self._decay
        if is_keyed:
            power_1, power_2 = (
                tf.cast(hyper[name], tf.float32) for name in ("beta_1_power", "beta_2_power")
            )
            rate = tf.cast(hyper["learning_rate"], tf.float32)
            decay *= rate * tf.sqrt(1 - power_2) / (1 - power_1)
        return RuleSpec("adamw", slots, {**hyper, "l2": decay})

    def _apply_dense(self, grad, var):
        with tf.control_dependencies([self._decay_all(var)]):
            return super()._apply_dense(grad, var)

    def _resource_apply_dense(self, grad, var):
        with tf.control_dependencies([self._decay_all(var)]):
            return super()._resource_apply_dense(grad, var)

    def _apply_sparse(self, grad, var):
        with tf.control_dependencies([self._decay_rows(var, grad.indices)]):
            return super()._apply_sparse(grad, var)

    def _resource_apply_sparse(self, grad, var, indices):
        with tf.control_dependencies([self._decay_rows(var, indices)]):
            return super()._resource_apply_sparse(grad, var, indices)

    def _decays(self, var):
        return self._decayed is None or any(var is decayed for decayed in self._decayed)

    def _decay_all(self, var):
        if not self._decays(var):
            return tf.no_op()
        return var.assign_sub(tf.cast(self._decay, var.dtype.base_dtype) * var, read_value=False)

    def _decay_rows(self, var, indices):
        if not self._decays(var):
            return tf.no_op()
        rows = tf.gather(var, indices)
        return v1.scatter_sub(var, indices, tf.cast(self._decay, rows.dtype) * rows)


class _decaying:  # noqa: N801
    """Inside, these variables of an AdamWOptimizer shrink; None or empty: all."""

    def __init__(self, optimizer, variables):
        self.optimizer = optimizer
        parts = [part for v in variables or () for part in parts_of(variable_of_all(v))]
        self.decayed = parts or None

    def __enter__(self):
        self.before, self.optimizer._decayed = self.optimizer._decayed, self.decayed

    def __exit__(self, *_):
        self.optimizer._decayed = self.before
