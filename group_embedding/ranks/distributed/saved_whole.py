"""Slots of sharded tables in what Keras saves of an optimizer: as one process has them.

Every rank must save."""

import functools
import inspect

from group_embedding.optimizers.bases import KERAS
from group_embedding.ranks.distributed.slots import mark_slot, slots_made_of
from group_embedding.ranks.sharding.sharded_table import assign_rows, gather_rows, sharded_table


@functools.cache  # once
def keep_slots_whole():
    """From now on each Keras optimizer knows its slots of sharded tables, and `.keras` and
    `.weights.h5` have them whole: also an optimizer that Keras makes as it loads a model."""
    stock = KERAS.Optimizer
    for name, change in {
        "add_variable_from_reference": _then_mark,
        "save_own_variables": _save_whole,
        "load_own_variables": _load_whole,
    }.items():
        setattr(stock, name, change(getattr(stock, name)))


def _then_mark(add):
    reference = list(inspect.signature(add).parameters)[1]  # Keras 2 and 3 name it otherwise

    @functools.wraps(add)
    def add_variable_from_reference(optimizer, *args, **kwargs):
        variable = args[0] if args else kwargs[reference]
        with slots_made_of(variable):
            return mark_slot(add(optimizer, *args, **kwargs), variable)

    return add_variable_from_reference


def _save_whole(save):
    @functools.wraps(save)
    def save_own_variables(optimizer, store):
        if not _has_shards(optimizer):
            save(optimizer, store)
            return
        for i, variable in enumerate(optimizer.variables):
            store[str(i)] = gather_rows(variable).numpy()

    return save_own_variables


def _load_whole(load):
    @functools.wraps(load)
    def load_own_variables(optimizer, store):
        # Stock says so where there are more variables or fewer.
        if not _has_shards(optimizer) or len(store.keys()) != len(optimizer.variables):
            load(optimizer, store)
            return
        for i, variable in enumerate(optimizer.variables):
            assign_rows(variable, store[str(i)][...])

    return load_own_variables


def _has_shards(optimizer):
    return any(sharded_table(variable) is not None for variable in optimizer.variables)
