"""`ge.plan`: what a model's tables will take, before it is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from group_embedding.config import FeatureConfig, TableConfig, nearest
from group_embedding.placement import REPLICATED, localized_rank
from group_embedding.planning import plan_text
from group_embedding.planning.hit_rates import hit_rate
from group_embedding.planning.sample import read_sample
from group_embedding.planning.table_bytes import (
    HBM_BYTES_OF_KEY,
    HBM_BYTES_OF_ROW_BELOW,
    TableBytes,
    measure,
)
from group_embedding.ranks.simulate import (
    MACHINES,
    Job,
    Network,
    StepTime,
    TableOfModel,
    TracedIds,
    step_time,
)
from group_embedding.variables import KeyedOptions, to_keyed_options

_ANY_NUMBER = 1 << 62  # of keys: there is no last one


@dataclasses.dataclass(frozen=True)
class TablePlan:
    """One table.

    Attributes:
        name: of the table.
        keys: how many rows it will have, on all ranks together.
        bytes_of_key: of a row, its slots, and what is kept of it in host memory.
        bytes_by_rank: for each rank {tier: bytes}, of "hbm", "dram" and "disk".
        hit_rates: {tier: share of ids whose row is there}.
    """

    name: str
    keys: int
    bytes_of_key: float
    bytes_by_rank: list[dict[str, float]]
    hit_rates: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Bytes, hit rates and a step, as `ge.plan` computed them; `print` shows them as a table.

    Attributes:
        tables: a TablePlan by the name of the table.
        step: the parts of the time of a step of the tables on GPUs, whose `total` is milliseconds,
            as if all rows were in GPU memory and by row number; None: the ranks have no GPU.
    """

    tables: dict[str, TablePlan]
    step: StepTime | None

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
    dtype: str = "float32",
    machine: str = "h100",
    ranks_of_host: int = 8,
    through: str = "peer_memory",
    network: Network | None = None,
    dense_ms: float = 0.0,
    program_ms: float = 0.0,
) -> Plan:
    """Computes the bytes of a model's tables by rank and tier, the hit rates of tiers, and the time
    of a step; neither a GPU nor the tables are needed.

    Bytes of a key are measured of small tables that a copy of the optimizer trains. A keyed table
    gets as many keys as `keys` says, or as the sample makes expect: its different ids, and beyond
    the sample as their number grew over its last half (Heaps' law). A filter (`admit_after`,
    `admit_probability`) lessens this number, which the plan leaves out; a budget limits it.

    Rows lie where a table's options say. Without `hbm` a table of rows is in host memory; with it
    each rank has so many bytes of GPU memory: tables of rows take what they need, and tables with
    tiers ["hbm", "dram"] share the rest by their size, unless `tier_bytes` says otherwise.

    The time of a step is that of `ge.simulate`, as if all rows were in GPU memory and by row
    number: neither tiers nor the search for keys lengthen it. It was within 30% of recorded steps
    of tables by row number with their `program_ms` given. With `program_ms=0` steps of 1,024
    samples came out at 0.19 to 0.25 of their time; keyed tables at 0.74 and 0.69 with it given; and
    a table with a tenth of its rows in GPU memory at 0.45.

    Args:
        model: a Keras model or a `GroupEmbedding`, built or not, or a list of FeatureConfigs.
        batches: a sample: dicts of ids by feature, or tuples that begin with one, as a dataset has.
        samples: with how many samples the model will be trained in all; None: those of the sample.
        keys: {keyed table: how many keys it will have}, instead.
        optimizer: a Keras optimizer; None: the one that the model is compiled with, or rows without
            slots.
        ranks: how many there are; each trains a batch as large as the sample's first one.
        hbm: bytes of GPU memory for the tables of a rank; None: ranks have no GPU.
        dtype: of rows of tables that name none.
        machine: "h100" or "h200", for the time of a step.
        ranks_of_host: how many ranks a host has.
        through: how rows travel within a host, "peer_memory" or "nccl".
        network: the links between hosts, a `ge.simulate.Network`; None: 50 GB/s a rank.
        dense_ms, program_ms: the time of the rest of the model, and in which the program issues a
            step, as of `ge.simulate.step_time`; 0: not counted.

    Returns:
        Plan.

    Raises:
        ValueError: a feature has no ids in a batch, `keys` names no keyed table, or `machine` or a
            number is not as above; the message says which.

    Example:

    >>> user = ge.FeatureConfig("user", ge.TableConfig("users", None, 16))
    >>> batches = [{"user": np.random.default_rng(i).zipf(1.5, [64, 3])} for i in range(10)]
    >>> found = ge.plan([user], batches=batches, samples=10**9, ranks=4)
    >>> found.tables["users"].keys > 10**5, sorted(found.bytes_by_rank[3])
    (True, ['dram'])
    """
    features, optimizer = to_features(model), optimizer or optimizer_of(model)
    sample = read_sample(batches, features)
    configs = {feature.table.name: feature.table for feature in features}
    _check(configs, keys or {}, ranks, machine)
    measured = _measure_all(configs, optimizer, dtype, ranks)
    sizes = {
        name: _size_of(config, measured[name], sample, features, samples, keys or {}, ranks)
        for name, config in configs.items()
    }
    hbm_left = _hbm_for_tiers(configs, sizes, measured, hbm, ranks)
    tables = {
        name: _plan_table(
            config,
            sizes[name],
            measured[name],
            hbm,
            hbm_left,
            ranks,
            sample.of_table(name, features),
        )
        for name, config in configs.items()
    }
    step = None
    if hbm is not None:
        job = Job(ranks, ranks_of_host, sample.batch_size, through=through)
        of_model = [_table_of_model(feature, sizes, sample) for feature in features]
        step = step_time(
            of_model, job, MACHINES[machine], network, dense_ms=dense_ms, program_ms=program_ms
        )
    return Plan(tables, step)


def to_features(model):
    if isinstance(model, Sequence):
        return list(model)
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else [model]
    found = [f for layer in layers for f in getattr(layer, "features", ()) if _is_feature(f)]
    if not found:
        raise ValueError(f"plan: expected a model with a GroupEmbedding, got {model!r}")
    return found


def _is_feature(feature):
    return isinstance(feature, FeatureConfig)


def optimizer_of(model):
    return getattr(model, "optimizer", None)


def _check(configs, keys, ranks, machine):
    if ranks < 1:
        raise ValueError(f"ranks: expected at least 1, got {ranks}")
    if machine not in MACHINES:
        raise ValueError(f"machine: expected one of {', '.join(sorted(MACHINES))}, got {machine!r}")
    keyed = [name for name, config in configs.items() if config.num_rows is None]
    for name in keys:
        if name not in keyed:
            raise ValueError(f"keys: expected keyed tables, got '{name}'{nearest(name, keyed)}")


def _options_of(config) -> KeyedOptions | None:
    return None if config.num_rows is not None else to_keyed_options(config.name, config.ev_option)


@dataclasses.dataclass(frozen=True)
class _Size:
    """How many rows a table has on all ranks together, and would have without a budget."""

    rows: int
    wanted: int


def _size_of(config: TableConfig, measured, sample, features, samples, keys, ranks):
    options = _options_of(config)
    if config.num_rows is not None:
        return _Size(config.num_rows, config.num_rows)
    if config.name in keys:
        expected = keys[config.name]
    else:
        ids = sample.of_table(config.name, features)
        total = len(ids) if samples is None else samples * len(ids) / sample.num_samples
        expected = TracedIds.of(ids, _ANY_NUMBER).unique(total)
    rows = round(expected)
    if options.max_keys is not None:
        rows = min(rows, options.max_keys * (ranks if options.budget_of == "rank" else 1))
    if measured.max_keys is not None:
        rows = min(rows, measured.max_keys * ranks)
    return _Size(rows, round(expected))


def _measure_all(configs, optimizer, dtype, ranks):
    """{table: TableBytes}; tables of one shape and kind are measured once."""
    found: dict[tuple[int, str, str, bool], TableBytes] = {}
    of_table = {}
    for name, config in configs.items():
        options = _options_of(config) or KeyedOptions(slot_dtype=config.slot_dtype)
        kind = (config.dim, config.dtype or dtype, repr(options), config.trainable)
        if kind not in found:
            trained = optimizer if config.trainable else None
            found[kind] = measure(config.dim, kind[1], options, trained, ranks)
        of_table[name] = found[kind]
    return of_table


def _rows_by_rank(config, size, ranks):
    if config.placement == REPLICATED:
        return [size] * ranks
    owner = localized_rank(config.placement)
    if owner is not None:
        return [size if rank == owner else 0 for rank in range(ranks)]
    return [size / ranks] * ranks


def _hbm_for_tiers(configs, sizes, measured, hbm, ranks):
    """{table with tiers and no tier_bytes: its bytes of GPU memory on a rank}"""
    if hbm is None:
        return {}
    left, wanted = float(hbm), {}
    for name, config in configs.items():
        options = _options_of(config)
        rows = max(_rows_by_rank(config, sizes[name].rows, ranks))
        if options is None or options.tiers == ("hbm",):
            kept = HBM_BYTES_OF_KEY if options else 0
            left -= rows * (measured[name].row + kept)
        elif options.tiers[0] == "hbm":
            if options.tier_bytes:
                left -= options.tier_bytes[0] + rows * HBM_BYTES_OF_ROW_BELOW
            else:
                wanted[name] = rows * measured[name].row
    total = sum(wanted.values())
    return {name: max(0.0, left) * size / total for name, size in wanted.items() if total}


def _plan_table(config, size, measured, hbm, hbm_left, ranks, ids) -> TablePlan:
    options = _options_of(config)
    by_rank = [
        _bytes_of_tiers(rows, measured, options, hbm, hbm_left.get(config.name))
        for rows in _rows_by_rank(config, size.rows, ranks)
    ]
    held = by_rank[0][1]
    rates: dict[str, float] = {}
    reached = 0.0
    for tier, rows in held.items():
        share = hit_rate(ids, (reached + rows) * _division(config, ranks), size.wanted)
        rates[tier] = share - sum(rates.values())
        reached += rows
    kept = measured.kept if options is not None else 0.0
    return TablePlan(
        config.name, size.rows, measured.row + kept, [found for found, _ in by_rank], rates
    )


def _division(config, ranks):
    """Among how many ranks the rows of a table are divided."""
    whole = config.placement == REPLICATED or localized_rank(config.placement) is not None
    return 1 if whole else ranks


def _bytes_of_tiers(rows, measured, options, hbm, hbm_bytes):
    """({tier: bytes}, {tier: rows}) of so many rows on one rank."""
    if options is None:
        tier = "dram" if hbm is None else "hbm"
        return {tier: rows * measured.row}, {tier: rows}
    first = options.tiers[0]
    of_key = measured.row + (HBM_BYTES_OF_KEY if first == "hbm" else measured.kept)
    fixed = 0.0 if first == "hbm" else measured.fixed
    if len(options.tiers) == 1:
        return {first: fixed + rows * of_key}, {first: rows}
    limits = [*(options.tier_bytes or ()), None, None][: len(options.tiers)]
    if hbm_bytes is not None:  # for what is there of the rows below, too
        below = min(HBM_BYTES_OF_ROW_BELOW, of_key - 1)
        limits[0] = max(0.0, hbm_bytes - rows * below) * of_key / (of_key - below)
    sizes: dict[str, float] = {}
    held: dict[str, float] = {}
    left = rows
    for place, (tier, limit) in enumerate(zip(options.tiers, limits)):
        of_row = of_key if tier == first else measured.row + _HEAD_BYTES
        is_last = place == len(options.tiers) - 1
        here = left if is_last or limit is None else min(left, limit / of_row)
        left -= here
        if here > 0 or tier == first:
            held[tier] = here
            sizes[tier] = here * of_row + (fixed if tier == first else 0.0)
    if first == "hbm":
        sizes["hbm"] += held.get("dram", 0.0) * HBM_BYTES_OF_ROW_BELOW
    return sizes, held


_HEAD_BYTES = 32  # of a row below the first tier: key, count, version and clock


def _table_of_model(feature, sizes, sample):
    ids = sample.of_feature(feature)
    rows = sizes[feature.table.name].rows
    per_sample = len(ids) / sample.num_samples
    source = TracedIds.of(ids, rows)
    return TableOfModel(feature.name, rows, feature.table.dim, per_sample, source)
