"""The lookup of tables that are spread over the ranks, of whatever dtypes, dims and placements.

    ids of this rank ── route ──> messages ══ alltoall ══> requests of all ranks
                          │                                      │ locate keys, look up local rows
        routed ids <──────┘                                      v
            │ lookup and combine <── unpack ══ alltoall ══ pack ── rows
            v
    one vector per sample

`exchange_ids` is what stands to the left of the tables, `look_up` the rest. The first reads no
table: ids may be exchanged ahead of the step that looks them up. So may rows, by `fetch_ahead`:
their owner keeps what it sent, and `look_up` has those sent again that have changed since, by
whatever changed them. The rows are the same to the bit, and nothing else knows of it: no key is
inserted or counted, and nothing is saved.

Where a table's placement has sums, an owner gets the ids of each sample instead of unique ids, adds
up their rows, and sends a row for each sample and feature with ids there (`exchange/host/
route_sums.h`); `look_up` adds up those of the owners. Tables of both kinds travel together.

Where a table's placement is by columns, all ranks are asked for the same rows, or sums, and each
sends its columns; they are joined as they come (`exchange/host/join_columns.h`).

Gradients flow backwards through the same ops: the gradient of each unique row crosses once, divided
by the number of ranks (of replicas: as it is), and the owner sums what the ranks send. So a table's
gradient is that of the mean of the ranks' losses, ready for one update on its owner. All ranks take
part in both directions, also with an empty batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager import record

from group_embedding.ops.group_ids import Batch
from group_embedding.ops.group_lookup import group_lookup
from group_embedding.ops.join_columns import join_columns
from group_embedding.ops.lookup_group import rows_of_tables
from group_embedding.ops.route_ids import (
    Requests,
    RoutedTable,
    of_sums,
    read_requests,
    route_ids,
)
from group_embedding.ops.row_source import LOCAL_ROWS, RowSource

_ANY_KEY = -1  # in place of a number of rows


class RoutedBatch(NamedTuple):
    """A batch whose ids have been exchanged, and its rows not yet."""

    batch: Batch  # in terms of the rows that will come back
    counts: tf.Tensor  # int64 [ranks, tables]: rows asked of each rank
    requests: Requests  # what all ranks ask of this one
    ahead: tuple = ()  # what `Exchange.rows_ahead` returned; empty: no rows have been fetched

    @property
    def weighted(self):
        """True if some feature has weights."""
        return self.batch.weighted


class RowsOfRanks(RowSource):
    """Tables of any dtypes over the ranks of one exchange, which sends ids and then rows."""

    def exchange_ids(self, group, batch):
        """Sends ids to the owners of their rows; see `RowSource`.

        Returns:
            A RoutedBatch. A bad id on any rank is an error on every rank, which names the rank that
            has it.
        """
        return batch if isinstance(batch, RoutedBatch) else ask_owners(group, batch)

    def prefetch(self, group, batch):
        """Prefetches the rows that all ranks request from this one; see `RowSource`."""
        requests = batch.requests
        batches = [
            LOCAL_ROWS.prefetch(rows_of_tables(tables), requested)
            for (tables, requested) in _requested(group, requests)
        ]
        return batch._replace(requests=requests._replace(batches=batches))

    def fetch_ahead(self, group, batch):
        """Fetches rows as they are now, of tables of one dtype in host memory; see `RowSource`."""
        exchange = group.tables[0].exchange
        if not exchange.ahead or batch.ahead or not _are_looked_up(group, batch):
            return batch
        what = f"rows ahead of {summary(group.tables)}"
        with record.stop_recording():  # a lookup that reads: keys are not inserted
            ahead = exchange.rows_ahead(*_rows_to_send(group, batch), "rows_ahead", what)
        return batch._replace(ahead=tuple(ahead))

    def look_up(self, group, batch, concat):
        """Fetches the rows of a RoutedBatch and combines them; see `RowSource`. With `concat`,
        tables are of one dtype."""
        return combine_rows(group, batch.batch, fetch_rows(group, batch), concat)


ROWS_OF_RANKS = RowsOfRanks()


def ask_owners(group: Any, batch: Any, of_host: Sequence[tf.Tensor] = ()) -> RoutedBatch:
    """Sends ids to the owners of their rows; see `RowsOfRanks.exchange_ids`.

    Args:
        group: a LookupGroup.
        batch: its Batch; with `of_host`, one of a feature for each table.
        of_host: see `route_ids`.
    """
    exchange = group.tables[0].exchange
    tables, description = routed_tables(group), describe(group)
    asked = rows_of_tables(group.tables) if of_host else group
    route = route_ids(asked, batch, exchange.num_ranks, tables, description, of_host)
    messages, splits = exchange.alltoall(
        route.messages, route.splits, "exchange_ids", f"the ids of {summary(group.tables)}"
    )
    lookups = _lookups_of(group)
    requests = read_requests(group, messages, splits, tables, lookups, description)
    return RoutedBatch(route.batch, route.counts, requests)


def fetch_rows(group: Any, batch: RoutedBatch) -> list[tf.Tensor]:
    """The rows, or sums, of a RoutedBatch: one float32 [rows, dim] per table."""
    return _join_columns(group.tables, _fetch_rows(group, batch))


def combine_rows(group: Any, batch: Any, matrices: Sequence[tf.Tensor], concat: bool) -> list:
    """Looks a batch up in the rows that were received for it.

    Args:
        group: a LookupGroup.
        batch: the Batch that `route_ids` returned.
        matrices: of `fetch_rows`.
        concat: see `RowSource.look_up`.
    """
    tables = [_as_received(group, table) for table in group.tables]
    received = [t.with_source(rows, tf.float32) for t, rows in zip(tables, matrices)]
    # A routed id of -1 is left out, and one past the end reads zeros.
    fetched = dataclasses.replace(
        group,
        tables=received,
        combiners=[
            "sum" if _has_sums(group, group.tables[t]) else combiner
            for t, combiner in zip(group.table_of_feature, group.combiners)
        ],
        prune_negative=True,
        invalid_ids="ignore",
    )
    outputs = group_lookup(fetched, batch, concat)
    of_outputs = [0] if concat else group.table_of_feature
    return [tf.cast(o, group.tables[t].dtype) for o, t in zip(outputs, of_outputs)]


def routed_tables(group: Any) -> list[RoutedTable]:
    """The tables of a group as routing sees them."""
    return [_as_routed(table, _has_sums(group, table)) for table in group.tables]


def _as_routed(table, sums=False):
    if table.keyed is not None:
        return RoutedTable(table.name, _ANY_KEY, table.keyed.placement, sums)
    shard = table.source.object
    return RoutedTable(table.name, shard.num_rows, shard.placement, sums)


def _has_sums(group, table):
    """Returns whether the table's owners send sums. In a dense lookup, which leaves no id out,
    samples are single rows."""
    return group.prune_negative and table.source.object.placement.sums


def refuse_norms_of_columns(table: Any) -> None:
    """Refuses a tables.Table with a max_norm whose owners would add up scaled rows of which they
    have some columns.

    Raises:
        ValueError: it is such a table.
    """
    placement = table.source.object.placement
    if table.max_norm and placement.is_by_columns and placement.sums:
        raise ValueError(
            f"table '{table.name}': expected no max_norm with placement '{placement}', as an owner "
            f"adds up rows of which it has some columns, and no norm, got {table.max_norm:g}; "
            "leave ':sums' out"
        )


def _join_columns(tables, matrices):
    """The rows, or sums, of tables, of which ranks sent their columns."""
    by_columns = [t for t, table in enumerate(tables) if _is_by_columns(table)]
    if not by_columns:
        return matrices
    joined = list(matrices)
    num_ranks = tables[0].exchange.num_ranks
    for t, rows in zip(by_columns, join_columns([joined[t] for t in by_columns], num_ranks)):
        joined[t] = tf.ensure_shape(rows, [None, tables[t].dim])
    return joined


def _is_by_columns(table):
    return table.source.object.placement.is_by_columns


def _as_received(group, table):
    """The table of which received rows are: the sums of an owner are of rows that it scaled."""
    return table._replace(max_norm=0.0) if _has_sums(group, table) else table


def describe(group):
    """All that the ranks must agree on."""
    tables = group.tables
    exchange = tables[0].exchange
    lines = [f"table '{table.name}': {describe_spread(table)}{_limit(table)}" for table in tables]
    lines += [
        f"feature '{name}': {combiner} of table '{tables[t].name}'"
        for name, t, combiner in zip(group.names, group.table_of_feature, group.combiners)
    ]
    ahead = ", ahead of the lookup where ids are" if exchange.ahead else ""
    return "\n".join([*lines, f"rows sent as {exchange.comm_dtype or 'they are'}{ahead}"])


def summary(tables: Sequence[Any]) -> str:
    """A lookup in one line, for a person."""
    most = 8
    names = ", ".join(f"'{table.name}'" for table in tables[:most])
    more = f" and {len(tables) - most} more" if len(tables) > most else ""
    return f"a lookup of table{'s' if len(tables) > 1 else ''} {names}{more}"


def _limit(table):
    return f", max_norm {table.max_norm:g}" if table.max_norm else ""


def describe_spread(table: Any) -> str:
    """Describes a table's size and placement."""
    _, num_rows, placement, _ = _as_routed(table)
    rows = "keys" if num_rows == _ANY_KEY else f"{num_rows} rows"
    return (
        f"{rows} of {table.dim} {table.dtype.name}, {placement}, "
        f"over {table.exchange.num_ranks} ranks"
    )


def _lookups_of(group):
    """For each table, the index of the lookup that serves it on its owner: one lookup for each
    dtype, for rows and for sums and, as ops run on the device of keyed tables, each device."""
    kinds = [(t.dtype, t.device_type, _has_sums(group, t)) for t in group.tables]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return [numbers[kind] for kind in kinds]


def _requested(group, requests):
    """For each lookup on the owner, this rank's shards of its tables, and what all ranks request of
    them."""
    lookups = _lookups_of(group)
    for lookup, batch in enumerate(requests.batches):
        tables = [table for table, of in zip(group.tables, lookups) if of == lookup]
        has_sums = _has_sums(group, tables[0])
        yield [_owned(group, t) for t in tables], of_sums(batch) if has_sums else batch


def _fetch_rows(group, routed):
    """The rows, or sums, that this rank requests, one float32 [rows, dim] per table."""
    tables, requests = group.tables, routed.requests
    exchange = tables[0].exchange
    called = ("exchange_rows", f"the rows of {summary(tables)}")
    if _are_looked_up(group, routed):
        return exchange.look_up_rows(*_rows_to_send(group, routed), routed.ahead, *called)
    rows = _look_up_owned(group, requests)
    dims = [table.of_this_rank().dim for table in tables]
    counts = requests.counts, routed.counts
    return exchange.exchange_rows(rows, *counts, dims, _wire(tables), *called)


def _are_looked_up(group, routed):
    """Returns whether rows go from tables to messages without a copy between."""
    if len(routed.requests.batches) != 1 or _has_sums(group, group.tables[0]):
        return False
    return group.tables[0].exchange.looks_up([_owned(group, table) for table in group.tables])


def _rows_to_send(group, routed):
    """The first arguments of `Exchange.look_up_rows`."""
    requests = routed.requests
    rows = rows_of_tables([_owned(group, table) for table in group.tables])
    batch = LOCAL_ROWS.locate(rows, requests.batches[0], requests.times[0])
    return rows, batch, requests.counts, routed.counts, _wire(group.tables)


def _owned(group, table):
    """This rank's shard. Rows are sent unscaled: the requesting rank scales them to max_norm."""
    shard = table.of_this_rank()
    return shard if _has_sums(group, table) else shard._replace(max_norm=0.0)


def _wire(tables):
    return [tables[0].exchange.comm_dtype or table.dtype for table in tables]


def _look_up_owned(group, requests):
    """The rows, or sums, that all ranks request from this one, one [rows, dim] per table."""
    rows, lookups = [None] * len(group.tables), _lookups_of(group)
    for lookup, (tables, batch) in enumerate(_requested(group, requests)):
        times = requests.times[lookup]
        found = LOCAL_ROWS.look_up(rows_of_tables(tables), batch, concat=False, times=times)
        for t, matrix in zip((t for t, of in enumerate(lookups) if of == lookup), found):
            rows[t] = matrix
    return rows
