"""Optimizers by the names that configs have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from group_embedding.annotations import Optimizer
from group_embedding.optimizers.bases import KERAS
from group_embedding.optimizers.registry import OWN, STOCK_NAMES
from group_embedding.optimizers.wrap import wrap


def maker_of(name: str) -> Callable[..., Optimizer]:
    """The function that makes an optimizer whose updates of tables are native.

    Args:
        name: one of `OPTIMIZER_NAMES`.

    Returns:
        A function with the signature of the Keras class, or of the function in `ge.optimizers`.
    """
    made = OWN.get(name) or getattr(KERAS, STOCK_NAMES[name])

    @functools.wraps(made)
    def make(**arguments):
        optimizer = made(**arguments)
        return optimizer if name in OWN else wrap(optimizer)

    return make


def num_slots(optimizer: Any) -> int:
    """How many numbers an optimizer, wrapped or of `ge.optimizers`, keeps beside each number of a
    table. A slot of one number per row counts for none."""
    spec = optimizer._ge_rule_spec()
    row_slots = getattr(optimizer, "_ge_row_slots", ())
    return sum(slot is not None for slot in spec.slots) - bool(row_slots)
