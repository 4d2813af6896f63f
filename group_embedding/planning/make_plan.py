"""`ge.plan`: what a model's tables will take, before it is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from group_embedding.config import check_int, check_not_negative, nearest
from group_embedding.placement import DISTRIBUTED
from group_embedding.planning import plan_text
from group_embedding.planning.choose_placements import simulated_placement
from group_embedding.planning.model_features import (
    features_as_trained,
    leaves_out_invalid,
    optimizer_of,
)
from group_embedding.planning.plan_tables import TablePlan, plan_tables
from group_embedding.planning.sample import read_sample
from group_embedding.ranks.simulate import (
    MACHINES,
    Job,
    Network,
    StepTime,
    TableOfModel,
    TracedIds,
    network_of,
    step_time,
)
from group_embedding.variables import to_keyed_options


@dataclasses.dataclass(frozen=True)
class Plan:
    """Bytes, hit rates and a step, as `ge.plan` computed them; `print` shows them as a table.

    Attributes:
        tables: a TablePlan by the name of the table.
        step: the parts of the time of a step of the tables on GPUs, whose `total` is milliseconds,
            at their placements and with rows of their types; None: the ranks have no GPU.
        hbm: bytes of GPU memory that each rank has for tables; None: it has no GPU.
    """

    tables: dict[str, TablePlan]
    step: StepTime | None
    hbm: int | None = None

    @property
    def bytes_by_rank(self) -> list[dict[str, float]]:
        """For each rank {tier: bytes} of all tables."""
        total: list[dict[str, float]] = []
        for table in self.tables.values():
            total = total or [{} for _ in table.bytes_by_rank]
            for of_rank, more in zip(total, table.bytes_by_rank):
                for tier, size in more.items():
                    of_rank[tier] = of_rank.get(tier, 0.0) + size
        return total

    def draw(self, path: str) -> None:
        """Writes a picture of the bytes of each rank by table and tier, by matplotlib."""
        plan_text.draw(self, path)

    def __str__(self) -> str:
        return plan_text.as_table(self)


def plan(
    model: Any,
    *,
    batches: Iterable[Any],
    samples: int | None = None,
    keys: Mapping[str, int] | None = None,
    optimizer: Any = None,
    ranks: int = 1,
    hbm: int | None = None,
    dtype: str | None = None,
    machine: str = "h100",
    ranks_of_host: int = 8,
    through: str = "peer_memory",
    network: Network | None = None,
    dense_ms: float = 0.0,
    program_ms: float | None = None,
) -> Plan:
    """Computes the bytes of a model's tables by rank and tier, the hit rates of tiers, and the time
    of a step; neither a GPU nor the tables are needed.

    Bytes of a key are measured of small tables that a copy of the optimizer trains. A keyed table
    gets as many keys as `keys` says, or as the sample makes expect: its different ids, and beyond
    the sample as their number grew over its last half (Heaps' law). A filter (`admit_after`,
    `admit_probability`) lessens this number, which the plan leaves out; a budget limits it.

    Tables are as the model trains them: tables of frozen layers have no slots, and the second of
    two tables named "items" is "items#2".

    Rows lie where a table's options say. Without `hbm` a table of rows is in host memory; with it
    each rank has so many bytes of GPU memory: tables of rows take what they need, and tables with
    tiers ["hbm", "dram"] share the rest by their size, unless `tier_bytes` says otherwise. A tier
    above another without `tier_bytes` has 1 GiB.

    The time of a step is that of `ge.simulate` with tables at their placements and rows of their
    types; a table of one rank counts as if each rank had one like it. Keys are searched for, and
    rows in host memory below a GPU's cross the bus. Not in it are reads of the disk, prefetched
    rows, the eviction of keys, and the host's work on tables without GPU memory, which count as if
    they had it. It was within 16% of recorded steps on one GPU, and within 20% on two and four.

    Args:
        model: a Keras model or a `GroupEmbedding`, built or not, or a list of FeatureConfigs.
        batches: a sample: dicts of ids by feature, or tuples that begin with one, as a dataset has.
        samples: with how many samples the model will be trained in all; None: those of the sample.
        keys: {keyed table: how many keys it will have}, instead.
        optimizer: a Keras optimizer; None: the one that the model is compiled with, or rows without
            slots.
        ranks: how many there are; each trains a batch as large as the sample's first one.
        hbm: bytes of GPU memory for the tables of a rank; None: ranks have no GPU. A plan may take
            more: `print` then says on which ranks.
        dtype: of rows of tables that name none; None: that of their layer, or "float32".
        machine: "h100" or "h200", for the time of a step.
        ranks_of_host: how many ranks a host has.
        through: how rows travel within a host, "peer_memory" or "nccl".
        network: the links between hosts, a `ge.simulate.Network`; None: 50 GB/s a rank.
        dense_ms: the time of the rest of the model; 0: not counted.
        program_ms: in which the program issues a step, beside it; None: that of a `tf.function`
            with so many tables and little else, as recorded. 0 for several steps a call.

    Returns:
        Plan.

    Raises:
        ValueError: an argument is not as above, a feature has fewer than two ids in the sample, or
            others than its table has rows for, a table cannot be placed over the ranks as its
            config says, or has tiers of GPU memory without `hbm`; the message says which.

    Example:

    >>> user = ge.FeatureConfig("user", ge.TableConfig("users", None, 16))
    >>> batches = [{"user": np.random.default_rng(i).zipf(1.5, [64, 3])} for i in range(10)]
    >>> found = ge.plan([user], batches=batches, samples=10**9, ranks=4)
    >>> found.tables["users"].keys > 10**5, sorted(found.bytes_by_rank[3])
    (True, ['dram'])
    """
    ranks = check_int(_OWNER, "ranks", ranks, at_least=1)
    if samples is not None:
        samples = check_int(_OWNER, "samples", samples, at_least=1)
    for name, time in (("dense_ms", dense_ms), ("program_ms", program_ms)):
        if time is not None:
            check_not_negative(_OWNER, name, time)
    if machine not in MACHINES:
        raise ValueError(f"machine: expected one of {', '.join(sorted(MACHINES))}, got {machine!r}")
    network = network_of(network)
    features = features_as_trained(model, dtype)
    configs = {feature.table.name: feature.table for feature in features}
    _check_hbm(hbm, configs)
    sample = read_sample(batches, features, leaves_out_invalid(model))
    job = Job(ranks, ranks_of_host, sample.batch_size, through=through, gathers_ids=True)
    tables = plan_tables(
        features,
        sample,
        optimizer=optimizer or optimizer_of(model),
        ranks=ranks,
        samples=samples,
        keys=_checked_keys(keys, configs),
        hbm=hbm,
    )
    if hbm is None:
        return Plan(tables, None)
    of_model = [_table_of_model(feature, tables, sample, ranks) for feature in features]
    ways = [simulated_placement(feature.table.placement or DISTRIBUTED) for feature in features]
    if program_ms is None:
        program_ms = MACHINES[machine].program_of(len(tables))
    step = step_time(of_model, job, MACHINES[machine], network, ways, dense_ms, program_ms)
    return Plan(tables, step, hbm)


_OWNER = "ge.plan"


def _check_hbm(hbm, configs):
    if hbm is not None:
        check_int(_OWNER, "hbm", hbm, at_least=1)
        return
    for name, config in configs.items():
        if config.num_rows is not None:
            continue
        tiers = to_keyed_options(name, config.ev_option).tiers
        if tiers[0] == "hbm":
            raise ValueError(
                f"table '{name}': expected hbm=<bytes of GPU memory for the tables of a rank>, as "
                f"its tiers are {list(tiers)}, got None"
            )


def _checked_keys(keys, configs):
    """{keyed table: how many keys}"""
    if keys is None:
        return {}
    if not isinstance(keys, Mapping):
        raise ValueError(f"keys: expected a dict of numbers by keyed table, got {keys!r}")
    keyed = [name for name, config in configs.items() if config.num_rows is None]
    for name in keys:
        if name not in keyed:
            raise ValueError(f"keys: expected keyed tables, got '{name}'{nearest(name, keyed)}")
    return {name: check_int("keys", f"'{name}'", of, at_least=1) for name, of in keys.items()}


def _table_of_model(feature, tables, sample, ranks):
    config, ids = feature.table, sample.of_feature(feature)
    table, number_bytes = tables[config.name], tf.as_dtype(config.dtype).size
    return TableOfModel(
        feature.name,
        table.keys,
        config.dim,
        len(ids) / sample.num_samples,
        TracedIds.of(ids, table.keys),
        trained=config.trainable,
        column_parts=ranks,
        row_bytes=number_bytes,
        keyed=config.num_rows is None,
        share_below=_share_below(table.hit_rates),
        slot_bytes=table.bytes_of_row - config.dim * number_bytes,
    )


def _share_below(hit_rates):
    """The share of ids whose row is in host memory or on disk, below GPU memory."""
    if "hbm" not in hit_rates:
        return 0.0
    return sum(share for tier, share in hit_rates.items() if tier != "hbm")
