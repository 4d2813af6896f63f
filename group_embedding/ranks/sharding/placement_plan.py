"""A placement for each table whose placement is 'auto', from the sizes of the tables alone.

Pure functions of plain values; neither TensorFlow nor the native library is imported.
"""

import dataclasses
from typing import Optional

from group_embedding.placement import AUTO, DISTRIBUTED, REPLICATED, localized_rank

_EXPECTED_IDS = 1024  # of a table whose ids nobody has counted
_REPLICATED_BYTES = 16 << 10  # a table up to this size costs more to ask for than to have
_LARGE_SHARE = 0.5  # of what one rank should have: a table above it is spread over all
_KEY_BYTES = 8


@dataclasses.dataclass(frozen=True)
class TableLoad:
    """The cost of a table to its ranks.

    Attributes:
      name: The table's name.
      num_rows: The number of rows; `None`: the table is keyed, and its size is not known.
      dim: The length of a row.
      expected_ids: The number of its ids in a rank's batch, approximately; `None`: 1,024.
      placement: 'distributed', 'localized:<rank>', 'columns', 'replicated', or 'auto': the plan
        decides.
      element_bytes: The size of one number.
    """

    name: str
    num_rows: Optional[int]
    dim: int
    expected_ids: Optional[float] = None
    placement: str = AUTO
    element_bytes: int = 4

    @property
    def memory(self):
        """Bytes of its rows."""
        return (self.num_rows or 0) * self.dim * self.element_bytes

    @property
    def traffic(self):
        """Bytes of a step that one rank asks for: unique ids, and their rows there and back."""
        ids = _EXPECTED_IDS if self.expected_ids is None else self.expected_ids
        unique = ids if self.num_rows is None else min(ids, self.num_rows)
        return unique * (_KEY_BYTES + 2 * self.dim * self.element_bytes)


@dataclasses.dataclass(frozen=True)
class PlacementPlan:
    """The placement of each table. `str` of it is a readable table.

    Attributes:
      tables: A TableLoad for each table; none says 'auto' any more.
      memory, traffic: The bytes that each rank holds, and that are requested from it, by rank.
    """

    tables: tuple
    memory: tuple
    traffic: tuple

    @property
    def placements(self):
        """{name of a table: its placement}."""
        return {table.name: table.placement for table in self.tables}

    def __str__(self):
        rows = [("table", "rows", "dim", "MiB", "KiB a step", "placement")]
        for table in self.tables:
            count = "keys" if table.num_rows is None else f"{table.num_rows:,}"
            sizes = _mebibytes(table.memory), _kibibytes(table.traffic)
            rows.append((table.name, count, str(table.dim), *sizes, table.placement))
        for rank, (memory, traffic) in enumerate(zip(self.memory, self.traffic)):
            sizes = _mebibytes(memory), _kibibytes(traffic)
            rows.append((f"rank {rank}", "", "", *sizes, ""))
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join(
            "  ".join(cell.rjust(w) if 0 < c < 5 else cell.ljust(w) for c, cell, w in line).rstrip()
            for line in ([*zip(range(6), row, widths)] for row in rows)
        )


def plan_placements(tables, num_ranks):
    """Decides where the tables go whose placement is 'auto'; others stay where they are placed.

    Small tables are replicated. Tables that are a large part of what one rank should hold or be
    asked for are distributed, as are those found by key. The others, largest first, go whole to the
    rank that has least so far. The same tables always give the same plan.

    Example:

    >>> loads = [TableLoad("user", 1_000_000, 16), TableLoad("day", 7, 4)]
    >>> plan_placements(loads, num_ranks=2).placements
    {'user': 'distributed', 'day': 'replicated'}

    Args:
      tables: An iterable of TableLoad.
      num_ranks: How many ranks there are.

    Returns:
      A PlacementPlan with the tables in the order given.
    """
    tables = tuple(tables)
    placed = {t.name: t.placement for t in tables if t.placement != AUTO}
    open_tables = [table for table in tables if table.placement == AUTO]
    share = _Shares(tables, num_ranks)
    for table in open_tables:
        if table.num_rows is not None and table.memory <= _REPLICATED_BYTES:
            placed[table.name] = REPLICATED
        elif table.num_rows is None or share.of(table) > _LARGE_SHARE:
            placed[table.name] = DISTRIBUTED
    load = [0.0] * num_ranks
    for table in tables:
        if localized_rank(placed.get(table.name)) is not None:
            load[localized_rank(placed[table.name])] += share.of(table)
    left = [table for table in open_tables if table.name not in placed]
    for table in sorted(left, key=share.of, reverse=True):
        rank = load.index(min(load))
        placed[table.name] = f"localized:{rank}"
        load[rank] += share.of(table)
    planned = tuple(dataclasses.replace(table, placement=placed[table.name]) for table in tables)
    ranks = range(num_ranks)
    return PlacementPlan(
        planned,
        tuple(sum(_memory_on(table, rank, num_ranks) for table in planned) for rank in ranks),
        tuple(sum(_traffic_to(table, rank, num_ranks) for table in planned) for rank in ranks),
    )


class _Shares:
    """How much a table is of what one rank should have: of memory or traffic, the larger part."""

    def __init__(self, tables, num_ranks):
        self._memory = sum(table.memory for table in tables) / num_ranks
        self._traffic = sum(table.traffic for table in tables) / num_ranks

    def of(self, table):
        memory = table.memory / self._memory if self._memory else 0.0
        return max(memory, table.traffic / self._traffic if self._traffic else 0.0)


def _memory_on(table, rank, num_ranks):
    if table.placement == REPLICATED:
        return table.memory
    return table.memory * _part_of(table, rank, num_ranks)


def _traffic_to(table, rank, num_ranks):
    """The bytes that all ranks request from this one."""
    if table.placement == REPLICATED:
        return 0
    return table.traffic * num_ranks * _part_of(table, rank, num_ranks)


def _part_of(table, rank, num_ranks):
    home = localized_rank(table.placement)
    return 1 / num_ranks if home is None else float(rank == home)


def _mebibytes(size):
    return f"{size / 2**20:,.2f}"


def _kibibytes(size):
    return f"{size / 2**10:,.1f}"
