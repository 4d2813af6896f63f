"""The slots that an optimizer keeps of a table: spread over the ranks as the table is."""

import contextlib

import tensorflow as tf

from group_embedding.lookups.lookup_table import tf_variable
from group_embedding.ranks.sharding.sharded_table import mark_shard, sharded_table

# Lists of variables in optimizers of Keras 2 and 3 that are not one slot of every variable.
_NO_SLOTS = ("_variables", "_trainable_variables", "_model_variables")


def mark_slot(slot, variable):
    """Declares that `slot`, if it has a row for each row of the sharded table `variable`, holds the
    rows of this rank, or if the table is spread by columns, those of this rank. Returns it."""
    shard = sharded_table(variable)
    raw = slot if isinstance(slot, tf.Variable) else getattr(slot, "value", None)
    if shard is None or not isinstance(raw, tf.Variable):
        return slot
    if shard.placement.is_by_columns:
        is_of_rank, dim = raw.shape == shard.variable.shape, shard.dim
    else:
        is_of_rank = raw.shape.rank == 2 and raw.shape[0] == shard.variable.shape[0]
        dim = raw.shape[1] if is_of_rank else 0
    if is_of_rank:
        shape = (shard.num_rows, dim)
        mark_shard(raw, shape, shard.exchange, shard.placement)
    return slot


def slots_made_of(variable):
    """Inside, variables are marked as slots of `variable` as they are made: before they are
    tracked, when a checkpoint that was restored earlier gives them their values."""
    if sharded_table(variable) is None:
        return contextlib.nullcontext()
    return tf.variable_creator_scope(lambda make, **kwargs: mark_slot(make(**kwargs), variable))


class MarkedSlots:
    """Mixed into optimizers of TensorFlow 1 and legacy ones of Keras, which restore a slot right
    after they have made it."""

    def _restore_slot_variable(self, slot_name, variable, slot_variable):
        mark_slot(slot_variable, variable)
        return super()._restore_slot_variable(slot_name, variable, slot_variable)

    def _create_or_restore_slot_variable(self, slot_variable_position, slot_name, variable):
        # Stock would make a slot of the whole table, as a checkpoint has it, of a variable with
        # this rank's rows; in a scope it waits until the slot is made.
        with slots_made_of(variable):
            return super()._create_or_restore_slot_variable(
                slot_variable_position, slot_name, variable
            )


def mark_slots(optimizer, variables):
    """Marks all slots that an optimizer has of `variables`, whoever made them."""
    for variable in variables:
        for slot in _slots_of(optimizer, variable):
            mark_slot(slot, variable)


def _slots_of(optimizer, variable):
    if hasattr(optimizer, "get_slot_names"):  # of TensorFlow 1, or a legacy one of Keras
        return [_slot_by_name(optimizer, variable, n) for n in optimizer.get_slot_names()]
    numbers = getattr(optimizer, "_index_dict", None)  # of Keras 2
    if numbers is None:
        numbers = getattr(optimizer, "_trainable_variables_indices", {})
    number = numbers.get(optimizer._var_key(variable)) if numbers else None
    if number is None:
        return []
    lists = [v for name, v in vars(optimizer).items() if name not in _NO_SLOTS]
    lists = [v for v in lists if isinstance(v, list) and len(v) == len(numbers)]
    return [of_variables[number] for of_variables in lists]


def _slot_by_name(optimizer, variable, name):
    try:
        return optimizer.get_slot(tf_variable(variable), name)
    except KeyError:  # it has not trained this variable
        return None
