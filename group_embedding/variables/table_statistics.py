"""Statistics of keyed tables: one snapshot of numbers, from which scalars of TensorBoard, metrics
of Prometheus and a printed table are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from group_embedding.config import distinct_names
from group_embedding.ops.table_budget import budget_counts
from group_embedding.ops.table_keys import table_stats
from group_embedding.ops.table_use import table_use
from group_embedding.ranks.exchange.active import of_process
from group_embedding.ranks.exchange.interface import ExchangeUse
from group_embedding.variables import statistics_text
from group_embedding.variables.embedding_variable import EmbeddingVariable
from group_embedding.variables.live_tables import live_tables


@dataclasses.dataclass(frozen=True)
class TableStatistics:
    """Numbers of one keyed table on this rank. Counts are of the table's life in this process.

    Attributes:
        name: of the table; of several with one name the second has "#2" behind it.
        tiers: the memories of its rows, the fastest first.
        keys: that have a row.
        memory_bytes, disk_bytes: taken by rows, slots, metadata and the index; and on disk.
        host_bytes: of memory_bytes, those in host memory below GPU memory.
        load_factor: of the index, 0 to 1.
        max_keys: the number of keys that its budget allows; 0: it has none.
        looked_up: ids of batches that were looked up, trained or read.
        found: how many of them had a row when the batch came, and prefetches that had begun were
            done, by tier.
        admitted: keys that got a row as they were trained.
        evicted: keys that went, by policy: the order of the budget, such as "least_recent"; and
            "evict_after_steps", "evict_after_minutes", "evict_below_norm". A key for which several
            of these hold counts for the first of them, in this order.
        without_place: how often a new key found no place in the budget.
        missed: evicted keys that were handed out to nobody.
        unique_share: how many different keys there were in a batch for each id, 0 to 1, by samples:
            each 8th batch, on a GPU each 32nd, counts the keys of one of 64 parts of the table.
            None: no sample had an id yet.
        hottest_share: the largest share that one key had of the ids of a batch, by the same
            samples: 512 batches, on a GPU 2,048, see all parts. None: no sample had an id yet.
        oldest_steps: for how many steps the key that was not trained for longest was not; in steps
            alone, not in minutes. At most 65,536 rows in memory are looked at, evenly spaced, and
            1,024 on disk, in 64 runs of successive keys; -1: none of these keys has a step.
            Only tables with `evict_after_steps` or a budget note the steps in which keys are
            trained.
        wait_seconds: for which lookups waited while keys were looked for on disk and their rows
            came to memory. Rows that a GPU reads from host memory are not in it.
    """

    name: str
    tiers: tuple[str, ...]
    keys: int
    memory_bytes: int
    host_bytes: int
    disk_bytes: int
    load_factor: float
    max_keys: int
    looked_up: int
    found: dict[str, int]
    admitted: int
    evicted: dict[str, int]
    without_place: int
    missed: int
    unique_share: float | None
    hottest_share: float | None
    oldest_steps: int
    wait_seconds: float

    @property
    def bytes_by_tier(self) -> dict[str, int]:
        """{tier: bytes}"""
        first = self.tiers[0]
        others = {"dram": self.host_bytes, "disk": self.disk_bytes}
        below = {tier: size for tier, size in others.items() if tier in self.tiers[1:]}
        return {first: max(0, self.memory_bytes - self.host_bytes), **below}

    def hit_rates(self, before: TableStatistics | None = None) -> dict[str, float]:
        """{tier: share of the ids looked up whose row was there}, since an earlier snapshot or the
        beginning; empty where there were none."""
        looked_up = self.looked_up - (before.looked_up if before else 0)
        if looked_up <= 0:
            return {}
        former = before.found if before else {}
        return {tier: (n - former.get(tier, 0)) / looked_up for tier, n in self.found.items()}


@dataclasses.dataclass(frozen=True)
class Statistics:
    """A snapshot of the keyed tables of this rank; `print` shows it as a table.

    Attributes:
        rank: of this process.
        tables: TableStatistics by the name of the table.
        exchange: an `ExchangeUse` of what this library sends: bytes that Horovod carries, such as
            gradients of dense layers, are not counted. None: there is one rank, or a rank has no
            memory for messages, or replicas of one process exchange rows.
    """

    rank: int
    tables: dict[str, TableStatistics]
    exchange: ExchangeUse | None

    def prometheus(self) -> str:
        """The numbers in the text format of Prometheus."""
        return statistics_text.as_prometheus(self)

    def scalars(self, before: Statistics | None = None) -> dict[str, float]:
        """{tag: number} for TensorBoard; rates are those since an earlier snapshot."""
        return statistics_text.as_scalars(self, before)

    def __str__(self) -> str:
        return statistics_text.as_table(self)


def statistics(of: Any = None) -> Statistics:
    """Reads what keyed tables hold and were asked for, on this rank.

    Training of a table waits while it is read: about a millisecond, and for 64 reads of its disk.

    Args:
        of: a layer or a model that is built, an EmbeddingVariable, or a list of them; None: all of
            the process, but those of graphs.

    Returns:
        Statistics.

    Raises:
        RuntimeError: it is called in a graph or in a `tf.function`, where it would be read once;
            `EmbeddingVariableStatisticsHook` reads the tables of a graph.
        TypeError: `of` is none of these.
        ValueError: the layer or model is not built.

    Example:

    >>> users = ge.keyed_table("counted_users", dim=2)
    >>> users.insert([5, 6, 7], tf.ones([3, 2]))
    >>> rows = ge.lookup([users], [tf.constant([5, 5, 6, 9], tf.int64)])
    >>> found = ge.statistics([users]).tables["counted_users"]
    >>> found.keys, found.looked_up, found.found, found.hit_rates()
    (3, 4, {'dram': 3}, {'dram': 0.75})
    """
    if not tf.executing_eagerly():
        raise RuntimeError(
            "statistics: expected a call outside of graphs and of tf.function, got one inside, "
            "which would be read once; call it between steps, or give a graph's session an "
            "EmbeddingVariableStatisticsHook"
        )
    tables = _tables_of(of)
    values = tf.nest.map_structure(lambda tensor: tensor.numpy(), tensors_of(tables))
    return statistics_from(tables, values)


def tensors_of(tables: Iterable[EmbeddingVariable]) -> list[Any]:
    """The tensors from whose values `statistics_from` makes Statistics."""
    found = []
    for table in tables:
        with tf.device(table.device):
            handle = table.table_handle
            found.append((table_stats(handle), table_use(handle), budget_counts(handle)))
    return found


def statistics_from(tables: Iterable[EmbeddingVariable], values: list[Any]) -> Statistics:
    """Statistics of tables, whose `tensors_of` had these values."""
    tables = list(tables)
    names = distinct_names(table.name.partition(":")[0] for table in tables)
    found = {
        name: _statistics_of(name, table.options, *of_table)
        for name, table, of_table in zip(names, tables, values)
    }
    exchange = of_process()
    return Statistics(exchange.rank, found, exchange.use())


def _tables_of(of):
    """The keyed tables that `of` means, each once."""
    if of is None:
        return live_tables()
    if not isinstance(of, tf.Variable) and hasattr(of, "weights"):
        if not getattr(of, "built", True):
            raise ValueError(
                f"statistics: expected a layer or model that is built, got '{of.name}', which has "
                "no tables yet; call it on a batch first"
            )
        tables = [_variable_of(weight) for weight in of.weights]
        tables = [table for table in tables if isinstance(table, EmbeddingVariable)]
    else:
        given = of if isinstance(of, (list, tuple)) else [of]
        tables = [_variable_of(table) for table in given]
        for table, as_given in zip(tables, given):
            if not isinstance(table, EmbeddingVariable):
                raise TypeError(
                    "statistics: expected a layer, a model, an EmbeddingVariable or a list of "
                    f"these variables, got {as_given!r}"
                )
    return list({id(table): table for table in tables}.values())


def _variable_of(weight):
    """The variable of TensorFlow that a weight of Keras 3 has; else what is given."""
    return weight if isinstance(weight, tf.Variable) else getattr(weight, "value", weight)


def _statistics_of(name, options, stats, use, budget):
    sampled_ids = int(use.sampled_ids)
    found = [int(use.in_first_tier), int(use.in_second_tier), int(use.in_third_tier)]
    evicted = {}
    if options.has_budget:
        evicted[options.evict] = int(budget.evicted)
    for option, expired in _EXPIRED.items():
        if getattr(options, option) is not None:
            evicted[option] = int(getattr(use, expired))
    return TableStatistics(
        name=name,
        tiers=options.tiers,
        keys=int(stats.num_keys),
        memory_bytes=int(stats.memory_bytes),
        host_bytes=int(use.host_bytes),
        disk_bytes=int(use.disk_bytes),
        load_factor=float(stats.load_factor),
        max_keys=int(budget.max_keys),
        looked_up=int(use.looked_up),
        found=dict(zip(options.tiers, found)),
        admitted=int(use.admitted),
        evicted=evicted,
        without_place=int(budget.without_place),
        missed=int(budget.missed),
        unique_share=int(use.sampled_keys) / sampled_ids if sampled_ids else None,
        hottest_share=float(use.hottest_share) if sampled_ids else None,
        oldest_steps=int(use.oldest_steps),
        wait_seconds=int(use.wait_nanoseconds) / 1e9,
    )


_EXPIRED = {  # the option of each policy -> its count in TableUse
    "evict_after_steps": "expired_by_steps",
    "evict_after_minutes": "expired_by_minutes",
    "evict_below_norm": "expired_by_norm",
}
