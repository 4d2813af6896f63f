"""Figures of machines and links, from runs that are recorded in benchmarks/results."""

from __future__ import annotations

import dataclasses
import math

from group_embedding.config import check_not_negative, check_number


@dataclasses.dataclass(frozen=True)
class Machine:
    """A GPU, or a core of a CPU, and how it exchanges rows with the others of its host.

    Attributes:
      launch_ms: What a step costs on any batch: launches, and the plan of the call.
      exchange_ms: The same of the exchange, where there are several ranks.
      convert_ms: The same of rows that travel in fewer bits than they have in memory.
      ns_per_id: Sorting and routing of an id.
      ns_per_key: Finding the row of a key that is trained, and counting it.
      copy_gb_s: Bytes read and written a second by a copy in the GPU's memory.
      looked_up_moves, asked_moves, owned_moves, output_moves: How many times a step moves, at the
        speed of that copy, the rows of all ids, of the ids that are asked for, of the ids that a
        rank owns, and the outputs. Rows of many ids come from caches, so that they count less.
      alone_moves: The same of the ids that are asked for, of a rank that exchanges no rows.
      peer_gb_s, nccl_gb_s: Bytes a second between two GPUs of a host, each way, with the kernels
        beside, through peer memory and through NCCL.
      pack_gb_s: Bytes to other ranks a second that a core packs and unpacks; GPUs do so beside.
      tcp_gb_s: Bytes to other hosts a second that a core sends and receives by TCP, beyond what it
        does while the link is the limit; GPUs need none.
      bus_gb_s: Bytes a second between a GPU and its host's memory.
      program_ms, program_us_of_table: The time in which a `tf.function` issues a step, and what
        each table adds to it.
    """

    name: str
    launch_ms: float
    exchange_ms: float
    convert_ms: float
    ns_per_id: float
    copy_gb_s: float
    looked_up_moves: float
    asked_moves: float
    owned_moves: float
    output_moves: float
    peer_gb_s: float
    nccl_gb_s: float
    pack_gb_s: float = math.inf
    tcp_gb_s: float = math.inf
    ns_per_key: float = 0.0
    bus_gb_s: float = math.inf
    alone_moves: float = 0.0
    program_ms: float = 0.0
    program_us_of_table: float = 0.0

    def program_of(self, num_tables: int) -> float:
        """Milliseconds in which a `tf.function` issues a step with so many tables."""
        return self.program_ms + self.program_us_of_table * 1e-3 * num_tables


# Fitted to the rows of one GPU of benchmarks/results/bench_ranks_gpus_h200.json; the speeds of both
# transports to its rows of two GPUs in float32, the fixed times to those of 16 samples, and the
# moves of a rank alone to those of one GPU without an exchange. The search for a key is fitted to
# the keyed tables of 32,768 samples in bench_dlrm_ranks_h200.json, the program to the least times
# of "function" in bench_step_handles_tf2.21_h200.json; the bus is that of
# bench_tiers_host_rows_h100.json.
_H200 = Machine(
    name="h200",
    launch_ms=0.223,
    exchange_ms=0.03,
    convert_ms=0.10,
    ns_per_id=0.18,
    copy_gb_s=4290.0,
    looked_up_moves=0.40,
    asked_moves=4.98,
    owned_moves=2.0,
    output_moves=2.09,
    peer_gb_s=520.0,
    nccl_gb_s=326.0,
    ns_per_key=0.72,
    alone_moves=1.6,
    bus_gb_s=54.8,
    program_ms=1.46,
    program_us_of_table=1.9,
)
# The same work at the speed of its own memory.
_H100 = dataclasses.replace(_H200, name="h100", copy_gb_s=3030.0)
MACHINES = {machine.name: machine for machine in (_H100, _H200)}

# A core of a CPU, whose rank has it alone, fitted to runs of one and of two ranks on two cores in
# benchmarks/results/bench_ranks_cpus.json: ids, rows of owners, outputs and messages tell these
# apart, and other moves do not. Ranks of a host read each other's messages where they are; TCP is
# fitted to runs over two hosts, in bench_ranks_sums.json and bench_ranks_columns.json.
CPU = Machine(
    name="cpu",
    launch_ms=0.0,
    exchange_ms=0.0,
    convert_ms=0.0,
    ns_per_id=28.0,
    copy_gb_s=1.0,
    looked_up_moves=0.0,
    asked_moves=0.0,
    owned_moves=0.716,
    output_moves=0.798,
    peer_gb_s=math.inf,
    nccl_gb_s=math.inf,
    pack_gb_s=0.923,
    tcp_gb_s=0.449,
)


def cpu_of(cores: int) -> Machine:
    """A CPU of which each rank has so many cores, as if all work were spread over them."""
    return dataclasses.replace(
        CPU,
        ns_per_id=CPU.ns_per_id / cores,
        copy_gb_s=CPU.copy_gb_s * cores,
        pack_gb_s=CPU.pack_gb_s * cores,
        tcp_gb_s=CPU.tcp_gb_s * cores,
    )


@dataclasses.dataclass(frozen=True)
class Network:
    """The links between hosts.

    Attributes:
      gb_s: Bytes a second of one rank's share of its host's link, in 10^9.
      round_trip_ms: There and back between two hosts.
      round_trips: Times that a step waits for another host.
      message_us: What a message to one more peer costs its sender. The default is an assumption: no
        job of many hosts was measured.
    """

    gb_s: float = 50.0
    round_trip_ms: float = 0.02
    round_trips: float = 3.0
    message_us: float = 1.0

    def __post_init__(self) -> None:
        check_number("network", "gb_s", self.gb_s, above=0)
        for name in ("round_trip_ms", "round_trips", "message_us"):
            check_not_negative("network", name, getattr(self, name))


def network_of(network: Network | None) -> Network:
    """The links between hosts that an argument `network` means; ValueError of another type."""
    if network is not None and not isinstance(network, Network):
        raise ValueError(f"network: expected a ge.simulate.Network or None, got {network!r}")
    return network or Network()
