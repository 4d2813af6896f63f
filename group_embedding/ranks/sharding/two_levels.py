"""The lookup of tables whose rows cross between hosts once a host, and not once a rank.

    ids of a rank ── unique ──> its proxies ── unique ──> owners      the batch of a proxy: what
    rows <══ shared memory ═══ rows of the host <══ network ═══ rows  all ranks of its host ask

The ranks of a host divide the owners on other hosts among themselves: each is the proxy of some
(`exchange/within_host.py`). A rank asks its host's proxies for ids, and each proxy routes the ids
of all as a batch of its own, by `sharded_lookup.py`: so ids are unique once more, rows come once a
host, and the proxy gives them to the ranks that asked. An owner on the same host is its own proxy.

Gradients flow backwards: a proxy adds those of its host's ranks up, in the order of the ranks and
in float32, and sends the sum. So an owner adds up sums of hosts where it else adds up the ranks'
gradients: the same within float rounding. Rows, and what is looked up, are the same to the bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from group_embedding.ops.group_ids import Batch
from group_embedding.ops.lookup_group import rows_of_tables
from group_embedding.ops.route_ids import read_requests_of_host, route_ids
from group_embedding.ops.row_source import RowSource
from group_embedding.ranks.sharding.sharded_lookup import (
    ROWS_OF_RANKS,
    RoutedBatch,
    ask_owners,
    combine_rows,
    describe,
    fetch_rows,
    routed_tables,
    summary,
)


class BatchByProxies(NamedTuple):
    """A batch whose ids have been exchanged within the host and between hosts, and its rows not
    yet."""

    batch: Batch  # in terms of the rows that the proxies will send
    counts: tf.Tensor  # int64 [ranks of the host, tables]: rows asked of each proxy
    asked: tf.Tensor  # int64 [ranks of the host, tables]: rows that each asks of this proxy
    of_host: RoutedBatch  # what this proxy asks the owners for

    @property
    def weighted(self):
        """True if some feature has weights."""
        return self.batch.weighted


class RowsByProxies(RowSource):
    """Tables over the ranks of an exchange that has one within each host."""

    def exchange_ids(self, group, batch):
        """Sends ids to proxies, and theirs to the owners of rows; see `RowSource`.

        Returns:
            A BatchByProxies. A bad id on any rank is an error on every rank, which names the rank
            that has it.
        """
        if isinstance(batch, BatchByProxies):
            return batch
        exchange = group.tables[0].exchange
        within_host = exchange.within_host
        tables, description = routed_tables(group), describe(group)
        route = route_ids(
            group, batch, exchange.num_ranks, tables, description, within_host=within_host
        )
        what = f"the ids of {summary(group.tables)}"
        called = route.messages, route.splits, "ids_within_host", what
        asked, fault = read_requests_of_host(
            group, *within_host.alltoall(*called), tables, description, within_host.ranks
        )
        of_host = ask_owners(group, asked.batches[0], of_host=(asked.times[0], fault))
        return BatchByProxies(route.batch, route.counts, asked.counts, of_host)

    def prefetch(self, group, batch):
        """See `RowSource`."""
        return batch._replace(of_host=ROWS_OF_RANKS.prefetch(group, batch.of_host))

    def fetch_ahead(self, group, batch):
        """See `RowSource`."""
        return batch._replace(of_host=ROWS_OF_RANKS.fetch_ahead(group, batch.of_host))

    def look_up(self, group, batch, concat):
        """Fetches the rows of a BatchByProxies and combines them; see `RowSource`."""
        exchange = group.tables[0].exchange
        matrices = fetch_rows(group, batch.of_host)
        received = [
            table._replace(max_norm=0.0).with_source(rows, tf.float32)
            for table, rows in zip(group.tables, matrices)
        ]
        what = f"the rows of {summary(group.tables)}"
        rows = exchange.within_host.look_up_rows(
            rows_of_tables(received),
            batch.of_host.batch,
            batch.asked,
            batch.counts,
            "rows_within_host",
            what,
        )
        return combine_rows(group, batch.batch, rows, concat)


ROWS_BY_PROXIES = RowsByProxies()


def crosses_once(table: Any) -> bool:
    """Returns whether a tables.Table is looked up by proxies: its placement is of two levels, and
    some host of several has several ranks."""
    return table.source.object.placement.two_levels and table.exchange.within_host is not None
