"""Optimizers by the names that configs have."""

from __future__ import annotations

import inspect
from typing import Any

from group_embedding.annotations import Optimizer
from group_embedding.optimizers.bases import KERAS
from group_embedding.optimizers.registry import OWN, STOCK_NAMES
from group_embedding.optimizers.wrap import wrap


def make_named(name: str, **arguments: Any) -> Optimizer:
    """Makes an optimizer whose updates of tables are native.

    Args:
        name: one of `OPTIMIZER_NAMES`.
        **arguments: of the Keras class, or of the function in `ge.optimizers`.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """
    made = _maker(name)(**arguments)
    return made if name in OWN else wrap(made)


def arguments_of(name: str) -> list[str]:
    """The names of the arguments that `make_named` takes for an optimizer, `kwargs` left out."""
    return [key for key in inspect.signature(_maker(name)).parameters if key != "kwargs"]


def num_slots(optimizer: Any) -> int:
    """How many numbers an optimizer, wrapped or of `ge.optimizers`, keeps beside each number of a
    table. A slot of one number per row counts for none."""
    spec = optimizer._ge_rule_spec()
    row_slots = getattr(optimizer, "_ge_row_slots", ())
    return sum(slot is not None for slot in spec.slots) - bool(row_slots)


def _maker(name):
    return OWN.get(name) or getattr(KERAS, STOCK_NAMES[name])
