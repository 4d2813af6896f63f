"""Moving averages of keyed tables: `use_ema` of Keras's optimizers.

Stock averages all rows of a variable in each step. The average of a row that a step does not change
moves towards the row by a known factor. So a keyed table keeps two slots with each row, its average
and the step of that average, and makes up for steps when the row is looked up again, or when
averages are written into the table. The result is stock's, and a step computes for its own rows
alone.
"""

import functools
import types
from typing import Any, NamedTuple

import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.lookups.lookup_table import variable_of_all
from group_embedding.ops import table_keys
from group_embedding.ops.group_update import KeyedSlot, Rule, hyper_vector
from group_embedding.optimizers.trained_tables import NEUTRAL
from group_embedding.ranks.sharding.replica_tables import parts_of
from group_embedding.variables import EmbeddingVariable
from group_embedding.variables.over_replicas import KeyedReplicas

_STEP_CYCLE = 2**24  # kStepCycle of cc/optimizer/average_rules.h


def is_keyed(variable):
    """Returns whether a variable is a keyed table, wrapped by Keras or not."""
    return isinstance(variable_of_all(variable), (EmbeddingVariable, KeyedReplicas))


class Averages(NamedTuple):
    """The averages that an optimizer keeps, in a step.

    Args:
        name: of the optimizer: tables keep their averages under it.
        momentum: of averages.
        momentum_now: of this step, in which it may be another; a number or a tensor.
        step: int64, the number of this step, 1, 2, ...
    """

    name: str
    momentum: float
    momentum_now: Any
    step: tf.Tensor

    def rule_before(self, apply):
        """The Rule that makes up for steps, before a step changes rows. `apply`: 1, or 0 where
        tables stay as they are."""
        return self._rule("catch_up_average", self.momentum, apply)

    def rule_after(self, apply):
        """The Rule that moves averages of rows that a step has changed."""
        return self._rule("move_average", self.momentum_now, apply)

    def write(self, variable, swap=False):
        """Gives all rows of a keyed table the values of their averages after this step. `swap`:
        averages take the former values, so that a second call gives them back."""
        names = [slot.name for slot in self._slots()]
        for part in parts_of(variable_of_all(variable)):
            with tf.device(part.device):
                table_keys.write_averages(part.table_handle, names, self.momentum, self.step, swap)

    def _rule(self, name, momentum, apply):
        hyper = {
            **NEUTRAL,
            "apply": apply,
            "gradient_scale": 1.0,
            "clip_value": float("inf"),
            "weight_decay": 0.0,
            "rounding_key": 0.0,
            "momentum": momentum,
            "step": tf.math.floormod(self.step, _STEP_CYCLE),
        }
        return Rule(name, hyper_vector(hyper), False, self._slots(), tf.float32)

    def _slots(self):
        starts = {"average": 0.0, "average_step": -1.0}
        return tuple(KeyedSlot(f"{self.name}/{slot}", start) for slot, start in starts.items())


@functools.cache  # once
def let_callbacks_swap():
    """From now on Keras 3's `SwapEMAWeights`, which has a model evaluated with its averages, swaps
    those of keyed tables too."""
    callback = getattr(keras.callbacks, "SwapEMAWeights", None)
    if callback is not None:
        callback._tf_swap_variables = _swapping(callback._tf_swap_variables)
        callback._tf_finalize_ema_values = _keeping(callback._tf_finalize_ema_values)


def _swapping(swap_variables):
    @functools.wraps(swap_variables)
    def swap_all(callback, optimizer):
        for averages, variable in _averages_of(optimizer):
            averages.write(variable, swap=True)
        return swap_variables(callback, _of_others(optimizer))

    return swap_all


def _keeping(finalize_ema_values):
    """Wraps the method that, while both are swapped, gives averages the values of rows."""

    @functools.wraps(finalize_ema_values)
    def keep_all(callback, optimizer):
        for averages, variable in _averages_of(optimizer):
            averages.write(variable, swap=True)
            averages.write(variable)
        return finalize_ema_values(callback, _of_others(optimizer))

    return keep_all


def _averages_of(optimizer):
    """Each keyed table that an optimizer trains, with the Averages."""
    for variable in filter(is_keyed, optimizer._trainable_variables):
        if not hasattr(optimizer, "_ge_averages"):
            parts_of(variable_of_all(variable))[0].refuse_optimizer()
        yield optimizer._ge_averages(optimizer.iterations), variable


def _of_others(optimizer):
    """The attributes of an optimizer that the callback reads, without keyed tables."""
    variables = optimizer._trainable_variables
    pairs = list(zip(variables, optimizer._model_variables_moving_average))
    others = [pair for pair in pairs if not is_keyed(pair[0])]
    return types.SimpleNamespace(
        _trainable_variables=[variable for variable, _ in others],
        _model_variables_moving_average=[average for _, average in others],
        _distribution_strategy=optimizer._distribution_strategy,
    )
