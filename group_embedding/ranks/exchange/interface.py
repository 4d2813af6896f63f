"""The interface between group_embedding and transports of tensors between processes."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from group_embedding.annotations import DTypeLike, TensorLike
from group_embedding.ops.pack_rows import pack_rows, unpack_rows
from group_embedding.ops.pending_calls import PendingCall
from group_embedding.ranks.exchange.within_host import ExchangeWithinHost


class ExchangeUse(NamedTuple):
    """Bytes that a rank has sent since it joined, and seconds it waited.

    Attributes:
        hosts: the host of each rank.
        sent_bytes: bytes sent to each rank through host memory.
        gpu_sent_bytes: bytes of lookups sent to each rank from its GPU, by NCCL or into peer
            buffers: ids, rows, sums and gradients, without the counts that begin each lookup.
        wait_seconds: from when a call was made until all ranks had made it, summed over calls, some
            of which may wait at the same time.
    """

    hosts: tuple[str, ...]
    sent_bytes: tuple[int, ...]
    gpu_sent_bytes: tuple[int, ...]
    wait_seconds: float


class Exchange(abc.ABC):
    """Collective operations among the ranks of a job.

    Order. Every rank makes the same calls, with the same names, dtypes and (where stated) shapes.
    A call ends only when all ranks have made it. In a graph, or a `tf.function`, calls are matched
    by name, whatever order the executor picks: all ranks must build the same graph. Eagerly they
    are matched by their order, which must be the same on all ranks. TensorFlow may leave out a call
    whose result no op reads: read it on all ranks or on none.

    Threads. An exchange may be used from several threads that build graphs. Eager calls, and runs
    of graphs that contain calls, come from one thread at a time.

    Devices. Tensors may be on any device; an implementation copies what it cannot take.

    Errors. A call that cannot end because another rank ended raises a `tf.errors.OpError`, once the
    implementation notices. A rank that raises between two calls leaves the others waiting until
    its process ends.
    """

    # The dtype in which rows and their gradients are sent; None: the table's.
    comm_dtype = None
    # The default placement of tables: see `enable_distributed_strategy`.
    placement = "distributed"
    # Whether rows are fetched ahead of their lookup: see `enable_distributed_strategy`.
    ahead = False
    # The ranks' NCCL communicator, an ops.sharded_group_lookup.NcclRanks; None: a rank has no GPU.
    nccl_ranks = None
    # The exchange of the ranks of this host, by which rows cross between hosts once; None: ranks of
    # a host ask owners each by itself, as where they share no memory, or have no other host.
    within_host: ExchangeWithinHost | None = None
    # The tf.distribute strategy whose replicas the ranks are; None: ranks are processes.
    strategy = None

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """This process, or replica, 0 to num_ranks - 1."""

    @property
    @abc.abstractmethod
    def num_ranks(self) -> int:
        """The number of ranks of the job."""

    @property
    def of_this_process(self) -> Sequence[Exchange]:
        """The exchanges of the ranks that this process is: itself, except for replicas."""
        return [self]

    @property
    def gradient_divisor(self) -> int:
        """The divisor of the sum of the ranks' gradients of a table: the number of ranks, so that
        the sum becomes a mean; 1 for replicas."""
        return self.num_ranks

    def use(self) -> ExchangeUse | None:
        """Counts of bytes sent, and of time waited, by this rank; None: the exchange has none."""
        return None

    @property
    def local_rank(self) -> int:
        """The index of this process among those of its host, which share its GPUs."""
        return 0

    @property
    def ranks_of_host(self) -> int:
        """The number of processes of this host that are ranks: they share its cores and GPUs."""
        return 1

    @abc.abstractmethod
    def alltoall(
        self, tensor: TensorLike, splits: TensorLike, name: str, what: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends slices of `tensor` along its first axis to all ranks.

        Args:
            tensor: [n, ...], of any numeric dtype; n may be 0 and differ between ranks.
            splits: int32 [num_ranks], the size of each rank's slice along the first axis.
            what: a line that describes the call, the same on all ranks; by default its name.
                If ranks differ, the error contains it.

        Returns:
            The received data, ordered by sending rank, and the size received from each rank (int32
            [num_ranks]). The gradient is an alltoall in the other direction.
        """

    def exchange_rows(
        self,
        rows: Sequence[tf.Tensor],
        sent: tf.Tensor,
        received: tf.Tensor,
        dims: Sequence[int],
        wire: Sequence[DTypeLike],
        name: str,
        what: str,
    ) -> list[tf.Tensor]:
        """Sends the rows of many tables to the ranks that requested them.

        Args:
            rows: per table [n, dim], those for rank 0 first.
            sent, received: int64 [num_ranks, tables], how many rows of each table go to each rank,
                and how many come from it.
            dims, wire: per table, its dim, and the dtype in which its rows are sent.
            what: as in `alltoall`.

        Returns:
            A float32 [m, dim] tensor per table: the received rows, ordered by sending rank. Only
            rows with a gradient are sent back, with their gradient divided by `gradient_divisor`.
        """
        packed, splits = pack_rows(rows, sent, wire)
        came, _ = self.alltoall(packed, splits, name, what)
        return unpack_rows(came, received, dims, wire, 1 / self.gradient_divisor)

    def looks_up(self, tables: Sequence[Any]) -> bool:
        """Returns whether `look_up_rows` and `rows_ahead` support these tables, of one dtype."""
        del tables
        return False

    def look_up_rows(
        self,
        group: Any,
        batch: Any,
        sent: tf.Tensor,
        received: tf.Tensor,
        wire: Sequence[DTypeLike],
        ahead: Sequence[tf.Tensor],
        name: str,
        what: str,
    ) -> list[tf.Tensor]:
        """`exchange_rows` of rows that are still in tables.

        Args:
            group: the `ops.lookup_group.LookupGroup` of the tables: a feature for each, and one id
                in each sample.
            batch: the ids of the rows.
            ahead: empty, or what `rows_ahead` returned for the same rows: then only those are sent
                that have changed since.
            others: as in `exchange_rows`.
        """
        raise NotImplementedError

    def rows_ahead(
        self,
        group: Any,
        batch: Any,
        sent: tf.Tensor,
        received: tf.Tensor,
        wire: Sequence[DTypeLike],
        name: str,
        what: str,
    ) -> Sequence[tf.Tensor]:
        """Sends rows as they are now, for a later `look_up_rows` of the same rows.

        Args:
            all: as in `look_up_rows`.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def average(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Returns the mean over the ranks of each of `tensors`, a list of floating tensors of the
        same shapes on all ranks; where static shapes differ, an error says so."""

    @abc.abstractmethod
    def allgather(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Returns, for each of `tensors`, the concatenation of all ranks' values along the first
        axis, whose size may differ between ranks."""

    def allgather_gradients(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Is `allgather` for tensors of each step that fit into memory several times."""
        return self.allgather(tensors, name)

    @abc.abstractmethod
    def broadcast(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Returns rank 0's value of each of `tensors`, which have the same shapes on all ranks."""

    def pending_calls(self) -> list[PendingCall]:
        """The calls in which this process waits. May be called from any thread."""
        return []

    def end(self, reason: str, all_live: bool = False) -> None:  # noqa: B027
        """Has calls that wait for other ranks, now and from now on, raise an error with this
        reason, where they would not find out by themselves. May be called from any thread.

        Args:
            all_live: whether all ranks live and call it, so that they can end calls together.
        """

    def leave(self, reason: str) -> None:
        """`end` of a rank that has made all its calls, before its process ends: what it sent before
        still reaches the others."""
        self.end(reason)

    def close(self) -> None:  # noqa: B027
        """Ends the exchange, and frees its resources. Graphs with its calls cannot run any more."""

    @abc.abstractmethod
    def barrier(self, name: str) -> Any:
        """Returns an op, which ends when it has started on all ranks; eagerly, ends then itself."""
