"""The exchange among the ranks of one host of a job of several, in memory that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.ops.host_exchange import HostExchange
from group_embedding.ops.pending_calls import PendingCall, pending_calls


class ExchangeWithinHost:
    """The ranks of a host, which ask the owners of rows on other hosts for each other.

    Args:
        messages: the HostExchange of these ranks alone.
        ranks: their numbers in the job, ascending.
        proxies: for each rank of the job the index in `ranks` of its proxy: see `proxies_of`.
    """

    def __init__(self, messages: HostExchange, ranks: Sequence[int], proxies: Sequence[int]):
        self._messages = messages
        self.ranks, self.proxies = tuple(ranks), tuple(proxies)

    def alltoall(
        self, tensor: tf.Tensor, splits: tf.Tensor, name: str, what: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Exchange.alltoall`."""
        return self._messages.alltoall(tensor, splits, name, f"{what}, within the host")

    def look_up_rows(
        self,
        group: Any,
        batch: Any,
        sent: tf.Tensor,
        received: tf.Tensor,
        name: str,
        what: str,
    ) -> list[tf.Tensor]:
        """See `Exchange.look_up_rows`. Rows and gradients travel in float32, and gradients as they
        are."""
        wire = [tf.float32] * len(group.tables)
        rows = group, batch, sent, received, wire
        return self._messages.look_up_rows(*rows, 1.0, (), name, f"{what}, within the host")

    def use(self, num_ranks: int) -> tuple[list[int], float]:
        """The bytes sent to each rank of the job, and the seconds that calls waited."""
        of_host, waited = self._messages.use()
        sent = [0] * num_ranks
        for rank, size in zip(self.ranks, of_host):
            sent[rank] = size
        return sent, waited

    def pending_calls(self) -> list[PendingCall]:
        """The calls in which this process waits for ranks of its host alone. Eager calls between
        hosts may have the same keys."""
        marked = {call.key for call in pending_calls()}
        calls = [c for c in pending_calls(self._messages.number) if c.key not in marked]
        return [c._replace(key=f"{c.key} within the host", ranks=self.ranks) for c in calls]

    def end(self, reason: str) -> None:
        """See `Exchange.end`."""
        self._messages.end(reason)

    def close(self) -> None:
        """See `Exchange.close`."""
        self._messages.close()


def proxies_of(ranks_of_host: Sequence[int], hosts: Sequence[Sequence[int]]) -> list[int]:
    """For each rank of a job the rank of a host that asks it for all ranks of that host, by its
    index there: a rank of the host itself is asked directly, and ranks of other hosts are divided,
    so that each proxy has as many.

    Args:
        ranks_of_host: the ranks of the host.
        hosts: the ranks of each host of the job.

    Example:

    >>> proxies_of([2, 3], [[0, 1], [2, 3], [4, 5, 6]])
    [0, 1, 0, 1, 0, 1, 0]
    """
    index_of = {rank: i for ranks in hosts for i, rank in enumerate(ranks)}
    return [index_of[rank] % len(ranks_of_host) for rank in sorted(index_of)]
