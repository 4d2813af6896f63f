"""The exchange between the replicas of a `tf.distribute.MirroredStrategy`: one process, with a rank
for each of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.annotations import TensorLike
from group_embedding.ranks.exchange.interface import Exchange


class ReplicaExchange(Exchange):
    """One replica's end of it; `of_replicas` makes those of all.

    One process builds the ops of all replicas, in `strategy.run`, whose `merge_call` has the
    tensors of all. So an exchange is ops between their devices, and no replica waits for one that
    does not come: TensorFlow raises where replicas make different numbers of calls. What is
    received is where this replica's own tensors are.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, rank: int, ranks: list[ReplicaExchange]
    ) -> None:
        self.strategy = strategy
        self._rank = rank
        self._ranks = ranks

    @staticmethod
    def of_replicas(strategy: tf.distribute.Strategy) -> list[ReplicaExchange]:
        """The exchange of each replica, a list."""
        ranks = []
        for rank in range(strategy.num_replicas_in_sync):
            ranks.append(ReplicaExchange(strategy, rank, ranks))
        return ranks

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def num_ranks(self) -> int:
        return len(self._ranks)

    @property
    def of_this_process(self) -> list[ReplicaExchange]:
        return self._ranks

    @property
    def gradient_divisor(self) -> int:
        # As a strategy's own variables, whose gradients are added up.
        return 1

    def alltoall(
        self, tensor: TensorLike, splits: TensorLike, name: str, what: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        del what  # one process makes the calls of all

        @tf.custom_gradient
        def send(tensor):
            received, received_splits = self._merge(_swap, [tensor, splits], name)

            def send_back(gradient, _):
                return self._merge(_swap, [gradient, received_splits], f"{name}_back")[0]

            return (received, received_splits), send_back

        return send(tf.convert_to_tensor(tensor))

    def average(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        return self._merge(_average, tensors, name)

    def allgather(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        return self._merge(_gather, tensors, name)

    def broadcast(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        return self._merge(_first, tensors, name)

    def barrier(self, name: str) -> Any:
        if self._context() is not None:  # else their one process is not among them
            self._merge(_first, [], name)
        return tf.no_op(name)

    def _context(self):
        """The context of the calling replica, or None."""
        context = tf.distribute.get_replica_context()
        return context if context is not None and context.strategy is self.strategy else None

    def _merge(self, collective, tensors, name):
        """This replica's results of a function of the lists of tensors of all replicas."""
        context = self._context()
        if context is None:
            raise RuntimeError(
                f"{name}: expected to be called in strategy.run, of the strategy over whose "
                f"{self.num_ranks} replicas tables are spread, got a call outside"
            )

        def merge(strategy, *of_replicas):
            lists = [strategy.experimental_local_results(values) for values in of_replicas]
            # What is one object on all replicas comes once.
            lists = [values * (self.num_ranks // len(values)) for values in lists]
            with tf.name_scope(name):
                return collective(list(zip(*lists)) or [()] * self.num_ranks)

        return context.merge_call(merge, args=tensors)[self._rank]


def _swap(of_replicas):
    """The tensor that each replica receives, and how much of it comes from each replica.
    of_replicas: each replica's tensor and splits."""
    ranks = range(len(of_replicas))
    pieces = []
    for tensor, splits in of_replicas:
        with tf.device(tensor.device):
            pieces.append(tf.split(tensor, splits, num=len(ranks)))
    received = []
    for to in ranks:
        with tf.device(of_replicas[to][0].device):
            tensor = tf.concat([pieces[by][to] for by in ranks], axis=0)
        with tf.device(of_replicas[to][1].device):
            received.append((tensor, tf.stack([of_replicas[by][1][to] for by in ranks])))
    return received


def _average(of_replicas):
    return _on_all(of_replicas, lambda values: tf.add_n(values) / len(values))


def _gather(of_replicas):
    return _on_all(of_replicas, lambda values: tf.concat(values, axis=0))


def _first(of_replicas):
    return _on_all(of_replicas, lambda values: tf.identity(values[0]))


def _on_all(of_replicas, function):
    """`function` of each tensor of all replicas, computed on each."""
    results = []
    for own in of_replicas:
        results.append([])
        for mine, values in zip(own, zip(*of_replicas)):
            with tf.device(mine.device):
                results[-1].append(function(list(values)))
    return results
