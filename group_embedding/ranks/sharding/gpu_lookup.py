"""The lookup of tables that are sharded over the ranks' GPUs: one op, with NCCL inside.

It has the same results as `sharded_lookup`, which supports every table; this one supports most
tables on GPUs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from group_embedding.ops.row_source import RowSource
from group_embedding.ops.sharded_group_lookup import sharded_group_lookup
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
    if table.exchange.nccl_ranks is None or table.device_type != "GPU":
        return False
    if table.keyed is not None:
        return table.keyed.placement.kind == "hash" and not weighted
    shard = table.source.object
    return isinstance(shard, ShardedTable) and shard.placement.kind == "mod"


def refuse_on_gpus(table: Any) -> None:
    """Refuses a tables.Table that is on a GPU and whose placement is for tables in host memory.

    Raises:
        ValueError: its owners send sums of rows, or rows by two levels, or it is spread by columns.
    """
    if table.device_type != "GPU":
        return
    placement = table.source.object.placement
    if placement.is_by_columns:
        raise ValueError(
            f"table '{table.name}': expected a placement by rows on a GPU, as columns are spread "
            f"of tables in host memory, got '{placement}'; place it by rows ('distributed'), or "
            "make the table with tf.device('CPU')"
        )
    for is_said, suffix, why in (
        (placement.sums, ":sums", "only owners with rows in host memory send sums"),
        (placement.two_levels, ":two_levels", "only ranks with rows in host memory share them"),
    ):
        if is_said:
            raise ValueError(
                f"table '{table.name}': expected a placement without '{suffix}' on a GPU, as {why},"
                f" got '{placement}'; leave '{suffix}' out, or make the table with "
                "tf.device('CPU')"
            )


class RowsOfGpus(RowSource):
    """Tables of one dtype over ranks with a GPU each: one op exchanges ids and rows."""

    def look_up(self, group, batch, concat):
        exchange, tables = group.tables[0].exchange, group.tables
        return sharded_group_lookup(
            dataclasses.replace(group, tables=[table.of_this_rank() for table in tables]),
            batch,
            concat,
            [-1 if table.keyed is not None else table.source.object.num_rows for table in tables],
            exchange.nccl_ranks,
            describe(group),
            exchange.comm_dtype or tables[0].dtype,
            1 / exchange.gradient_divisor,
        )


ROWS_OF_GPUS = RowsOfGpus()
