"""Tables over the replicas of a strategy: variables that it mirrors, but for their values, as each
copy has the rows of its replica."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.ranks.exchange.interface import Exchange


def is_over_replicas(exchange: Exchange) -> bool:
    """Returns whether the ranks of an Exchange are the replicas of a strategy."""
    return exchange.strategy is not None


def parts_of(variable: Any) -> Sequence[Any]:
    """The variables of this process's ranks: the copies of a variable that a strategy mirrors, or
    the variable itself."""
    if _is_mirrored(variable):
        return variable.distribute_strategy.experimental_local_results(variable)
    return (variable,)


def part_here(variable: Any) -> Any:
    """Of `parts_of`, that of the replica which asks; elsewhere the first."""
    if _is_mirrored(variable):
        return variable._get_on_device_or_primary()
    return variable


def _is_mirrored(variable):
    return isinstance(variable, tf.Variable) and isinstance(
        variable, tf.distribute.DistributedValues
    )


def check_in_scope(exchange: Exchange) -> None:
    """Refuses to make a table elsewhere than where the strategy mirrors variables.

    Raises:
        ValueError: outside of its scope, or in `strategy.run`.
    """
    in_scope = tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context()
    if not in_scope or tf.distribute.get_strategy() is not exchange.strategy:
        raise ValueError(
            f"expected a table over {exchange.num_ranks} replicas to be made in the scope of their "
            "strategy (`with strategy.scope():`), and not in strategy.run"
        )


def check_spread(placement):
    """Refuses a table that is not spread evenly: all copies have as many rows.

    Raises:
        ValueError: another placement.
    """
    if placement.kind in ("one_rank", "columns") or placement.sums:
        raise ValueError(
            "expected a table over the replicas of a strategy to be 'distributed', got "
            f"'{placement}'; 'localized', 'columns' and ':sums' need ranks that are processes"
        )


def refuse_stock_updates(variable: Any) -> None:
    """Has the copies of a variable refuse optimizers that would add up the gradients of all
    replicas, which are of different rows."""
    for part in parts_of(variable):
        part.__class__ = _updated_by_owner(type(part))  # type: ignore[arg-type]


def let_train(variable: Any) -> None:
    """Says that the optimizer which trains a variable keeps the gradients of replicas apart."""
    for part in parts_of(variable):
        part._is_trained_by_owner = True


def check_trained(variable: Any) -> None:
    """Refuses to have a variable trained by an optimizer that was not made for it.

    Raises:
        TypeError: `let_train` has not been called.
    """
    for part in parts_of(variable):
        if isinstance(part, _UpdatedByOwner):
            part.check_owner()


def _by_owner(method):
    def checked(self, *args, **kwargs):
        self.check_owner()
        return getattr(super(_UpdatedByOwner, self), method)(*args, **kwargs)

    return checked


class _UpdatedByOwner:
    """Methods of a copy of a mirrored variable that stock optimizers call."""

    _is_trained_by_owner = False

    def check_owner(self):
        if not self._is_trained_by_owner:
            raise TypeError(
                f"table '{self.name.partition(':')[0]}': expected an optimizer that keeps the "
                "gradients of replicas apart, as they are of different rows: "
                "sok.optimizers.Adam, sok.OptimizerWrapper(optimizer), or one that is applied in "
                "sok.OptimizerScope"
            )

    def _export_to_saved_model_graph(self, *args, **kwargs):
        raise ValueError(
            f"table '{self.name.partition(':')[0]}': expected no SavedModel of a table over the "
            "replicas of a strategy; save a checkpoint, restore it in one process, and export there"
        )

    assign_add = _by_owner("assign_add")
    assign_sub = _by_owner("assign_sub")
    scatter_add = _by_owner("scatter_add")
    scatter_sub = _by_owner("scatter_sub")

    @property
    def constraint(self):
        self.check_owner()  # optimizers of TensorFlow 1, and legacy ones, ask for nothing else
        return super().constraint


@functools.cache
def _updated_by_owner(stock):
    return type(stock.__name__, (_UpdatedByOwner, stock), {"__module__": stock.__module__})
