"""The lookups of tables that are spread over the ranks' GPUs: one op each, with NCCL inside.

They have the same results as `sharded_lookup`, which supports every table; these support most
tables on GPUs. `ROWS_OF_GPUS` sends each unique row, `SUMS_OF_GPUS` a sum of rows for each sample.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from group_embedding.ops.row_source import RowSource
from group_embedding.ops.sharded_group_lookup import Exchange, sharded_group_lookup
from group_embedding.ops.sums_group_lookup import BY_COLUMNS, BY_ROWS, sums_group_lookup
from group_embedding.ranks.sharding.sharded_lookup import describe
from group_embedding.ranks.sharding.sharded_table import ShardedTable


def is_served_by_gpus(table: Any, weighted: bool) -> bool:
    """Returns whether `RowsOfGpus` supports a tables.Table: one that is sharded by row number,
    or by the hashes of keys, over ranks with a GPU each, with its rows in the memory of these GPUs.

    Args:
        weighted: whether some lookup of the call has weights. Keys that are left out because of
            their weight are counted and get rows, but this exchange requests only rows with a
            gradient.
    """
    if not _is_on_gpus(table):
        return False
    if table.keyed is not None:
        placement = table.keyed.placement
        return placement.kind == "hash" and not placement.sums and not weighted
    shard = table.source.object
    if not isinstance(shard, ShardedTable):
        return False
    return shard.placement.kind == "mod" and not shard.placement.sums


def is_summed_by_gpus(table: Any) -> bool:
    """Returns whether `SUMS_OF_GPUS` supports a tables.Table: one without keys whose owners send
    sums, over ranks with a GPU each, with its rows in the memory of these GPUs."""
    shard = table.source.object
    return _is_on_gpus(table) and isinstance(shard, ShardedTable) and shard.placement.sums


def _is_on_gpus(table):
    return table.exchange.nccl_ranks is not None and table.device_type == "GPU"


def refuse_on_gpus(table: Any) -> None:
    """Refuses a tables.Table that is on a GPU and whose placement is for tables in host memory.

    Raises:
        ValueError: rows go by two levels, columns of rows are sent, or its owners send sums of rows
            that are found by key, or over ranks that have not a GPU each.
    """
    if table.device_type != "GPU":
        return
    placement = table.source.object.placement
    for is_said, wanted, why, instead in (
        (
            placement.is_by_columns and not placement.sums,
            "a placement by rows, or by columns with sums,",
            "columns of single rows are sent from host memory alone",
            "'columns:sums', or 'distributed'",
        ),
        (
            placement.two_levels,
            "a placement without ':two_levels'",
            "only ranks with rows in host memory share them",
            "the placement without it",
        ),
        (
            placement.sums and not is_summed_by_gpus(table),
            "a placement without ':sums'",
            "its owners need a GPU each, and rows without keys, to send sums",
            "the placement without it",
        ),
    ):
        if is_said:
            raise ValueError(
                f"table '{table.name}': expected {wanted} on a GPU, as {why}, got '{placement}'; "
                f"say {instead}, or make the table with tf.device('CPU')"
            )


class RowsOfGpus(RowSource):
    """Tables of one dtype over ranks with a GPU each: one op exchanges ids and rows."""

    def look_up(self, group, batch, concat):
        return sharded_group_lookup(_of_this_rank(group), batch, concat, _exchange_of(group))


ROWS_OF_GPUS = RowsOfGpus()


class SumsOfGpus(RowSource):
    """Tables of one dtype whose owners, ranks with a GPU each, send sums."""

    def look_up(self, group, batch, concat):
        owners = [_owner_of(table.source.object.placement) for table in group.tables]
        return sums_group_lookup(_of_this_rank(group), batch, concat, _exchange_of(group), owners)


SUMS_OF_GPUS = SumsOfGpus()


def _of_this_rank(group):
    return dataclasses.replace(group, tables=[table.of_this_rank() for table in group.tables])


def _exchange_of(group):
    first = group.tables[0]
    return Exchange(
        first.exchange.nccl_ranks,
        [-1 if table.keyed is not None else table.source.object.num_rows for table in group.tables],
        describe(group),
        first.exchange.comm_dtype or first.dtype,
        1 / first.exchange.gradient_divisor,
    )


def _owner_of(placement):
    return {"columns": BY_COLUMNS, "mod": BY_ROWS}.get(placement.kind, placement.rank)
