"""Ranks that are the replicas of a `tf.distribute.MirroredStrategy`, in one process.

The strategy mirrors dense variables and adds up their gradients, as everywhere. Tables are split
over its replicas, and the exchange adds up their gradients: each replica has those of its own rows,
and so they are kept apart.
"""

import contextlib

import tensorflow as tf

from group_embedding.lookups.lookup_table import variable_of_all
from group_embedding.ranks.exchange.active import of_process, set_current
from group_embedding.ranks.exchange.replica_exchange import ReplicaExchange
from group_embedding.ranks.sharding.replica_tables import is_over_replicas, let_train
from group_embedding.ranks.sharding.sharded_table import exchange_of


def share_over_replicas(strategy):
    """Spreads the tables made from now on, in the strategy's scope, over its replicas.

    A second call changes nothing; one for another strategy leaves tables where they are.

    Raises:
        ValueError: a strategy that is no MirroredStrategy; this process is one of several ranks.
    """
    # Not a subclass: replicas of several processes do not meet in one.
    if type(strategy) is not tf.distribute.MirroredStrategy:
        raise ValueError(
            "expected a tf.distribute.MirroredStrategy, whose replicas are in one process, or no "
            "strategy, as ranks are then processes that horovodrun launches, got "
            f"{type(strategy).__name__}"
        )
    now = of_process()
    if now.num_ranks > 1 and not is_over_replicas(now):
        raise ValueError(
            f"expected no tf.distribute strategy, as this process is one of {now.num_ranks} ranks "
            "already, got a MirroredStrategy; start it without horovodrun, or call it outside"
        )
    if now.strategy is not strategy:
        set_current(ReplicaExchange.of_replicas(strategy)[0])


class OverReplicas:
    """Mixed into the ways of Keras where ranks are the replicas of a strategy. It adds up their
    gradients when Keras asks for that; those of tables, each replica's of its own rows, stay apart.
    """

    def build(self, variables):
        for variable in variables:
            if exchange_of(variable) is not None:
                self._ge_check_replicas_agree()
                let_train(variable_of_all(variable))
        # Slots are mirrored as tables are, also those made outside, as before restoring.
        in_scope = tf.distribute.has_strategy()
        with contextlib.nullcontext() if in_scope else self._ge_exchange.strategy.scope():
            return super().build(variables)

    def _ge_as_in_one_process(self, grads_and_vars):
        return contextlib.nullcontext(grads_and_vars)

    def _ge_add_up(self, add_up, grads_and_vars):
        pairs = list(grads_and_vars)
        added = iter(add_up([pair for pair in pairs if exchange_of(pair[1]) is None]))
        return [next(added) if exchange_of(pair[1]) is None else pair for pair in pairs]

    def _ge_check_replicas_agree(self):
        settings = getattr(self, "_ge_settings", None)
        asks_all = {
            "clipnorm": self.clipnorm,
            "global_clipnorm": self.global_clipnorm,
            "skip_nonfinite": settings is not None and settings.skip_nonfinite,
        }
        for name, value in asks_all.items():
            if value:
                raise ValueError(
                    f"optimizer '{self.name}': expected no {name}, as each replica of a strategy "
                    f"knows the gradients of its own rows alone, got {name}={value}"
                )
