"""The placements of tables that are made together: what was asked for, or else the default of the
job; a plan where either says 'auto'."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from group_embedding.placement import AUTO, check_columns, check_placement, is_by_columns
from group_embedding.ranks.exchange.active import current
from group_embedding.ranks.sharding.placement_plan import TableLoad, plan_placements


def resolve_placements(loads: Sequence[TableLoad]) -> dict[str, str]:
    """{name: placement} of tables, where None stood for the default and 'auto' for a plan.

    A plan is printed by rank 0.

    Args:
        loads: a plan.TableLoad for each table; placements may be None.

    Raises:
        ValueError: a placement that is none, or columns that the ranks do not divide.
    """
    exchange = current()
    loads = [
        load if load.placement else dataclasses.replace(load, placement=exchange.placement)
        for load in loads
    ]
    words = {load.name: check_placement(f"table '{load.name}'", load.placement) for load in loads}
    for load in loads:
        if is_by_columns(load.placement) and load.num_rows is not None:
            check_columns(f"table '{load.name}'", load.dim, exchange.num_ranks)
    if AUTO not in words.values() or exchange.num_ranks == 1:
        return words
    plan = plan_placements(loads, exchange.num_ranks)
    if exchange.rank == 0:
        print(f"placement of {len(loads)} tables over {exchange.num_ranks} ranks:\n{plan}")
    return plan.placements
