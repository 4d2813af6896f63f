"""The time of a step of tables alone, from bytes, ids and measured speeds.

A step sorts ids, asks their owners for rows, combines them, and sends the rows' gradients back.
Each part is added to the others, as the parts of the recorded runs are: what a program does beside
the exchange is not subtracted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from group_embedding.config import check_int, check_not_negative, nearest
from group_embedding.ranks.simulate.machines import Machine, Network, network_of
from group_embedding.ranks.simulate.unique_ids import IdSource

PLACEMENTS = ("rows", "two_levels", "columns", "owner_sums")
# Those that 'best' leaves out: all rows on each rank take memory, and columns of rows are for
# tables whose rows are not spread evenly, which is not in the computation.
WHOLE, COLUMN_ROWS = "whole", "column_rows"
TRANSPORTS = ("peer_memory", "nccl")
_ID_BYTES = 8
_SUM_BYTES = 8  # how many of the ids one sum is of, and the factor of their combiner
_LEAST_COLUMNS = 16  # of a table's part, where columns are spread


@dataclasses.dataclass(frozen=True)
class TableOfModel:
    """One table and its features.

    Attributes:
      name: The name of the table.
      rows, dim: Its shape.
      ids: The number of ids of a sample, in all features together.
      source: Where ids come from, a `ZipfIds` or a `TracedIds`.
      features: How many features look it up.
      trained: Whether its rows have gradients.
      column_parts: Among how many ranks columns are spread, where they are; None: as many as leave
        16 columns each.
      row_bytes: The size of a number in memory, 4 or 2, and on its way at most; None: that of the
        job.
      keyed: Whether rows are found by key.
      share_below: The share of ids whose row is in host memory, below a GPU's.
      slot_bytes: What an optimizer has of each row.
    """

    name: str
    rows: int
    dim: int
    ids: float
    source: IdSource
    features: int = 1
    trained: bool = True
    column_parts: int | None = None
    row_bytes: int | None = None
    keyed: bool = False
    share_below: float = 0.0
    slot_bytes: float = 0.0

    def bytes_of_row(self, job: Job) -> int:
        """The size of a row in memory."""
        return self.dim * (self.row_bytes or job.row_bytes)

    def bytes_on_way(self, job: Job) -> int:
        """The size of a row on its way."""
        return self.dim * min(job.wire_bytes, self.row_bytes or job.wire_bytes)


@dataclasses.dataclass(frozen=True)
class Job:
    """Ranks, and how rows travel between them.

    Attributes:
      ranks: How many, a GPU each, or some cores of a CPU.
      ranks_of_host: How many of them a host has; the last host may have fewer.
      samples: The size of a rank's batch.
      row_bytes: The size of a number in memory, 4 or 2.
      wire_bytes: The size of a number on its way, 4 or 2.
      through: How rows travel within a host, 'peer_memory' or 'nccl'.
      gathers_ids: Whether owners that send sums get the ids of all ranks whole, as between GPUs;
        else those of their own rows.
    """

    ranks: int
    ranks_of_host: int
    samples: int
    row_bytes: int = 4
    wire_bytes: int = 4
    through: str = "peer_memory"
    gathers_ids: bool = False

    def __post_init__(self) -> None:
        for name in ("ranks", "ranks_of_host", "samples"):
            check_int("job", name, getattr(self, name), at_least=1)
        for name in ("row_bytes", "wire_bytes"):
            if getattr(self, name) not in (2, 4):
                raise ValueError(f"{name}: expected 2 or 4, got {getattr(self, name)}")
        if self.through not in TRANSPORTS:
            raise ValueError(
                f"through: expected one of {', '.join(TRANSPORTS)}, got {self.through!r}"
            )

    @property
    def hosts(self) -> int:
        return -(-self.ranks // self.ranks_of_host)

    @property
    def neighbours(self) -> int:
        """Ranks of a host, this one too."""
        return min(self.ranks, self.ranks_of_host)


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that one rank sends in a step: to other ranks of its host, and to other hosts."""

    within_host: float = 0.0
    between_hosts: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.within_host + other.within_host, self.between_hosts + other.between_hosts
        )


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The parts of a step in milliseconds.

    Attributes:
      launches: What does not depend on the batch.
      kernels: Sorting, lookups, gradients and updates; on a CPU also packing and TCP.
      within_host: Rows between GPUs of a host.
      between_hosts: Rows between hosts.
      waiting: Round trips, and messages to many peers.
      dense: The rest of the model, as given.
      host_memory: Rows between GPUs and the host's memory below.
      program: The time in which the program issues the step, as given. It runs beside the others.
    """

    launches: float
    kernels: float
    within_host: float
    between_hosts: float
    waiting: float
    dense: float = 0.0
    host_memory: float = 0.0
    program: float = 0.0

    @property
    def total(self) -> float:
        return max(sum(self.parts.values()), self.program)

    @property
    def parts(self) -> dict[str, float]:
        """The parts that add up, by name."""
        parts = dataclasses.asdict(self)
        del parts["program"]
        return parts

    @property
    def limit(self) -> str:
        """The name of what the step takes longest for."""
        if self.program >= sum(self.parts.values()):
            return "program"
        return max(self.parts.items(), key=lambda part: part[1])[0]


def step_time(
    tables: Sequence[TableOfModel],
    job: Job,
    machine: Machine,
    network: Network | None = None,
    placement: str | Sequence[str] = "rows",
    dense_ms: float = 0.0,
    program_ms: float = 0.0,
) -> StepTime:
    """The time of a step.

    Example:

    >>> tables = [TableOfModel("item", 1_000_000, 64, 1.0, ZipfIds(1_000_000, 1.05))]
    >>> one_host = step_time(tables, Job(8, 8, 65536), MACHINES["h200"])
    >>> eight = step_time(tables, Job(64, 8, 65536), MACHINES["h200"])
    >>> one_host.total < eight.total, eight.limit
    (True, 'between_hosts')

    Args:
      tables: The tables of the model.
      job: Ranks and batch.
      machine: The figures of a GPU, of `MACHINES`, or of a CPU, `cpu_of(cores)`.
      network: The links between hosts; None: 50 GB/s a rank.
      placement: 'rows': row r of a table lies on one rank, which sends it to each that asks;
        'two_levels': the same, and ranks of a host ask another host once for a row that several of
        them need; 'columns': each rank has some columns of all rows, and sends sums of samples;
        'owner_sums': rows lie as by 'rows', and an owner sends one sum for a sample's ids of a
        table; 'best': the quickest of all these and of one that chooses for each table the
        placement with the fewest bytes between hosts, or within a host where there is one. Or a
        list with one for each table, of these, 'whole': each rank has all rows, and 'column_rows':
        each rank has some columns of all rows, and sends them of each unique row.
      dense_ms: The time of the rest of the model.
      program_ms: The time in which the program issues a step.

    Raises:
      ValueError: the placement is none of these, or a time is not 0 or more.
    """
    network = network_of(network)
    for name, time in (("dense_ms", dense_ms), ("program_ms", program_ms)):
        check_not_negative("step", name, time)
    if not isinstance(placement, str):
        return _step(tables, placement, job, machine, network, dense_ms, program_ms)
    check_placement(placement)
    ways = [[placement] * len(tables)]
    if placement == "best":
        ways = [[best_placement(table, job) for table in tables]]
        ways += [[one] * len(tables) for one in PLACEMENTS]
    steps = (_step(tables, way, job, machine, network, dense_ms, program_ms) for way in ways)
    return min(steps, key=lambda step: step.total)


def _step(tables, placements, job, machine, network, dense_ms, program_ms):
    """The step with a placement for each table."""
    traffic, kernels, host_memory, peers = Traffic(), 0.0, 0.0, 0
    for table, placement in zip(tables, placements):
        traffic += traffic_of(table, job, placement)
        kernels += _kernels(table, job, machine, placement)
        host_memory += _milliseconds(_bytes_over_bus(table, job), machine.bus_gb_s)
        peers = max(peers, _peers(job, placement))
    is_nccl = job.through == "nccl"
    kernels += _milliseconds(traffic.within_host + traffic.between_hosts, machine.pack_gb_s)
    kernels += _milliseconds(traffic.between_hosts, machine.tcp_gb_s)
    return StepTime(
        launches=_launches(job, machine),
        kernels=kernels,
        within_host=_milliseconds(
            traffic.within_host, machine.nccl_gb_s if is_nccl else machine.peer_gb_s
        ),
        between_hosts=_milliseconds(traffic.between_hosts, network.gb_s),
        waiting=_waiting(job, network, peers),
        dense=dense_ms,
        host_memory=host_memory,
        program=program_ms,
    )


def check_placement(placement: str) -> None:
    choices = (*PLACEMENTS, "best")
    if placement not in choices:
        raise ValueError(
            f"placement: expected one of {', '.join(choices)}, got {placement!r}"
            f"{nearest(placement, choices)}"
        )


def best_placement(table: TableOfModel, job: Job, placements: Sequence[str] = PLACEMENTS) -> str:
    """The placement with the fewest bytes on the slower link that the job has."""
    return min(placements, key=lambda placement: bytes_on_link(table, job, placement))


def bytes_on_link(table: TableOfModel, job: Job, placement: str) -> float:
    """The bytes that a rank sends for a table in a step: to other hosts, or to other ranks of the
    only host."""
    traffic = traffic_of(table, job, placement)
    return traffic.between_hosts if job.hosts > 1 else traffic.within_host


def traffic_of(table: TableOfModel, job: Job, placement: str) -> Traffic:
    """The bytes that a rank sends for a table in a step: ids, rows or sums, and their gradients."""
    ids = job.samples * table.ids
    row = table.bytes_on_way(job)
    if placement == "rows":
        return _spread(job, _rows(table, ids, row))
    if placement == "two_levels":
        return _two_levels(table, job, ids, row)
    ways = 2 if table.trained else 1  # rows or sums, and their gradients
    if placement == WHOLE:
        gradients = table.source.unique(ids) * (_ID_BYTES + row) if table.trained else 0.0
        return Traffic(gradients * (job.neighbours - 1), gradients * (job.ranks - job.neighbours))
    if placement == "owner_sums":
        owners = table.features * _expected_owners(job.ranks, table.ids / table.features)
        sums = job.samples * owners * (_SUM_BYTES + ways * row)
        copies = job.ranks if job.gathers_ids else 1
        return _spread(job, copies * ids * _ID_BYTES + sums)
    parts = table.column_parts or min(job.ranks, max(1, table.dim // _LEAST_COLUMNS))
    if placement == COLUMN_ROWS:
        return _spread(job, table.source.unique(ids) * (parts * _ID_BYTES + ways * row))
    sums = job.samples * table.features
    return _spread(job, parts * (ids * _ID_BYTES + sums * _SUM_BYTES) + sums * ways * row)


def _rows(table, ids, row):
    return table.source.unique(ids) * (_ID_BYTES + (2 if table.trained else 1) * row)


def _spread(job, size):
    """`size` bytes for the owners of rows, all ranks alike: some lie here."""
    return Traffic(
        size * (job.neighbours - 1) / job.ranks, size * (job.ranks - job.neighbours) / job.ranks
    )


def _two_levels(table, job, ids, row):
    """Ranks of a host divide the rows that it asks others for, and then share them."""
    if job.hosts == 1:
        return _spread(job, _rows(table, ids, row))
    remote = (job.ranks - job.neighbours) / job.ranks
    of_host = _rows(table, ids * job.neighbours, row) / job.neighbours
    spread = _rows(table, ids, row) * (job.neighbours - 1) / job.neighbours
    return Traffic(spread, of_host * remote)


def _expected_owners(ranks, ids):
    """Different owners of the ids of a sample."""
    return ranks * (1 - (1 - 1 / ranks) ** ids) if ranks > 1 else 1.0


def _launches(job, machine):
    if job.ranks == 1:
        return machine.launch_ms
    converts = machine.convert_ms if job.wire_bytes < job.row_bytes else 0.0
    return machine.launch_ms + machine.exchange_ms + converts


def _waiting(job, network, peers):
    if job.hosts == 1:
        return 0.0
    messages = 3 * peers  # of ids, rows and gradients
    return network.round_trips * network.round_trip_ms + messages * network.message_us * 1e-3


def _peers(job, placement):
    """Ranks of other hosts that a rank sends to: by two levels, one of each host."""
    return job.hosts - 1 if placement == "two_levels" else job.ranks - job.neighbours


def _kernels(table, job, machine, placement):
    ids = job.samples * table.ids
    row = table.bytes_of_row(job)
    asked = table.source.unique(ids)
    owned = table.source.unique(ids * job.ranks) / (1 if placement == WHOLE else job.ranks)
    moved = row * (
        machine.looked_up_moves * ids
        + (machine.alone_moves if job.ranks == 1 else machine.asked_moves) * asked
        + machine.owned_moves * owned
        + machine.output_moves * job.samples * table.features
    )
    keys = (ids if job.ranks == 1 else asked) if table.keyed else 0.0
    searched = (ids * machine.ns_per_id + keys * machine.ns_per_key) * 1e-6
    return searched + _milliseconds(moved, machine.copy_gb_s)


def _bytes_over_bus(table, job):
    """Rows below a GPU's memory are read there once, and by an update read and written in place."""
    ids = job.samples * table.ids
    rows = min(table.share_below * ids, table.source.unique(ids))
    row = table.bytes_of_row(job)
    return rows * (row + (2 * (row + table.slot_bytes) if table.trained else 0))


def _milliseconds(size, gb_s):
    return size / gb_s * 1e-6
