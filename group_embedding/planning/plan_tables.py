"""The bytes of tables by rank and tier, and how often rows are found in each tier."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from group_embedding.config import FeatureConfig, TableConfig
from group_embedding.placement import DISTRIBUTED, check_columns, to_placement
from group_embedding.planning.hit_rates import hit_rate
from group_embedding.planning.sample import SampleOfIds
from group_embedding.planning.table_bytes import (
    HBM_BYTES_OF_KEY,
    HBM_BYTES_OF_ROW_BELOW,
    HEAD_BYTES,
    TableBytes,
    measure,
)
from group_embedding.ranks.simulate import TracedIds
from group_embedding.variables import KeyedOptions, to_keyed_options
from group_embedding.variables.storage import DEFAULT_TIER_BYTES

_ANY_NUMBER = 1 << 62  # of keys: there is no last one


@dataclasses.dataclass(frozen=True)
class TablePlan:
    """One table.

    Attributes:
        name: of the table.
        keys: how many rows it will have, on all ranks together.
        bytes_of_key: of a row, its slots, and what is kept of it in host memory.
        bytes_of_row: of a row and its slots.
        bytes_by_rank: for each rank {tier: bytes}, of "hbm", "dram" and "disk".
        hit_rates: {tier: share of ids whose row is there}.
    """

    name: str
    keys: int
    bytes_of_key: float
    bytes_of_row: float
    bytes_by_rank: list[dict[str, float]]
    hit_rates: dict[str, float]


def plan_tables(
    features: Sequence[FeatureConfig],
    sample: SampleOfIds,
    *,
    optimizer: Any,
    ranks: int,
    samples: int | None = None,
    keys: Mapping[str, int] | None = None,
    hbm: int | None = None,
) -> dict[str, TablePlan]:
    """{table: TablePlan}; arguments as of `ge.plan`.

    Args:
        features: with tables that name the type of their rows, each a name of its own.
        sample: ids of the features.

    Raises:
        ValueError: a table cannot be placed over the ranks as its config says, or the optimizer is
            none.
    """
    if isinstance(optimizer, type) or not (optimizer is None or hasattr(optimizer, "get_config")):
        raise ValueError(
            "optimizer: expected an optimizer of Keras, such as tf.keras.optimizers.Adagrad(0.1), "
            f"or None, got {optimizer!r}"
        )
    configs = {feature.table.name: feature.table for feature in features}
    spreads = {name: _spread_of(config, ranks) for name, config in configs.items()}
    measured = _measure_all(configs, optimizer, ranks)
    ids = {name: sample.of_table(name, features) for name in configs}
    sizes = {
        name: _size_of(config, measured[name], ids[name], sample, samples, keys or {}, ranks)
        for name, config in configs.items()
    }
    hbm_left = _hbm_for_tiers(configs, spreads, sizes, measured, hbm)
    return {
        name: _plan_table(
            config, spreads[name], sizes[name], measured[name], hbm, hbm_left.get(name), ids[name]
        )
        for name, config in configs.items()
    }


def _options_of(config) -> KeyedOptions | None:
    return None if config.num_rows is not None else to_keyed_options(config.name, config.ev_option)


def _spread_of(config, ranks):
    """The share of its rows that each rank has of a table: of all their bytes, if columns are
    spread."""
    owner, word = f"table '{config.name}'", config.placement or DISTRIBUTED
    placement = to_placement(owner, word, ranks, keyed=config.num_rows is None)
    if placement is None:
        return [1.0] * ranks
    if placement.kind == "one_rank":
        return [float(rank == placement.rank) for rank in range(ranks)]
    if placement.is_by_columns:
        check_columns(owner, config.dim, ranks)
    return [1 / ranks] * ranks


@dataclasses.dataclass(frozen=True)
class _Size:
    """How many rows a table has on all ranks together, and would have without a budget."""

    rows: int
    wanted: int


def _size_of(config: TableConfig, measured, ids, sample, samples, keys, ranks):
    options = _options_of(config)
    if config.num_rows is not None:
        return _Size(config.num_rows, config.num_rows)
    if config.name in keys:
        expected = keys[config.name]
    else:
        total = len(ids) if samples is None else samples * len(ids) / sample.num_samples
        expected = TracedIds.of(ids, _ANY_NUMBER).unique(total)
    rows = round(expected)
    if options.max_keys is not None:
        rows = min(rows, options.max_keys * (ranks if options.budget_of == "rank" else 1))
    if measured.max_keys is not None:
        rows = min(rows, measured.max_keys * ranks)
    return _Size(rows, round(expected))


def _measure_all(configs, optimizer, ranks):
    """{table: TableBytes}; tables of one shape and kind are measured once."""
    found: dict[tuple[int, str, str, bool], TableBytes] = {}
    of_table = {}
    for name, config in configs.items():
        options = _options_of(config) or KeyedOptions(slot_dtype=config.slot_dtype)
        kind = (config.dim, config.dtype, repr(options), config.trainable)
        if kind not in found:
            trained = optimizer if config.trainable else None
            found[kind] = measure(name, config.dim, config.dtype, options, trained, ranks)
        of_table[name] = found[kind]
    return of_table


def _hbm_for_tiers(configs, spreads, sizes, measured, hbm):
    """{table with tiers and no tier_bytes: its bytes of GPU memory on a rank}"""
    if hbm is None:
        return {}
    left, wanted = float(hbm), {}
    for name, config in configs.items():
        options, of_table = _options_of(config), measured[name]
        rows = sizes[name].rows * max(spreads[name])
        if options is None:
            left -= rows * of_table.row
            continue
        if options.tiers[0] != "hbm":
            continue
        left -= of_table.filter
        if len(options.tiers) == 1:
            left -= of_table.fixed["hbm"] + rows * (of_table.row + HBM_BYTES_OF_KEY)
        elif options.tier_bytes:
            below = min(rows, _most_in_host_memory(options, of_table.row))
            left -= max(options.tier_bytes[0], of_table.fixed["hbm"])
            left -= below * HBM_BYTES_OF_ROW_BELOW
        else:
            left -= of_table.fixed["hbm"]
            wanted[name] = rows * of_table.row
    total = sum(wanted.values())
    return {name: max(0.0, left) * size / total for name, size in wanted.items() if total}


def _plan_table(config, spread, size, measured, hbm, hbm_bytes, ids) -> TablePlan:
    options = _options_of(config)
    by_rank = [
        _bytes_of_tiers(size.rows * share, measured, options, hbm, hbm_bytes) for share in spread
    ]
    largest = max(spread)
    _, held = by_rank[spread.index(largest)]
    rates: dict[str, float] = {}
    reached = 0.0
    for tier, rows in held.items():
        reached += rows
        share = hit_rate(ids, reached / largest, size.wanted)
        rates[tier] = share - sum(rates.values())
    kept = measured.kept if options is not None else 0.0
    sizes = [found for found, _ in by_rank]
    return TablePlan(config.name, size.rows, measured.row + kept, measured.row, sizes, rates)


def _bytes_of_tiers(rows, measured, options, hbm, hbm_bytes):
    """({tier: bytes}, {tier: rows}) of so many rows on one rank."""
    if options is None:
        tier = "dram" if hbm is None else "hbm"
        return {tier: rows * measured.row}, {tier: rows}
    first = options.tiers[0]
    of_key = measured.row + (HBM_BYTES_OF_KEY if first == "hbm" else measured.kept)
    limits = _limits_of(options)
    if first == "hbm" and len(limits) > 1:
        limits[0] = max(0.0, limits[0] - measured.fixed["hbm"])
    if hbm_bytes is not None:
        limits[0] = _limit_of_hbm(
            rows, hbm_bytes, of_key, _most_in_host_memory(options, measured.row)
        )
    sizes: dict[str, float] = {}
    held: dict[str, float] = {}
    left = rows
    for tier, limit in zip(options.tiers, limits):
        of_row = of_key if tier == first else measured.row + HEAD_BYTES
        here = min(left, limit / of_row)
        left -= here
        if here > 0 or tier == first:
            held[tier] = here
            sizes[tier] = here * of_row
    sizes[first] += measured.fixed[first] + measured.filter
    if first == "hbm":
        sizes["hbm"] += held.get("dram", 0.0) * HBM_BYTES_OF_ROW_BELOW
    if "disk" in sizes:
        sizes["disk"], host = measured.of_disk(held["disk"])
        sizes["dram"] += host
    return sizes, held


def _limits_of(options):
    """The bytes of each tier: those given, else the default of tables that have tiers below."""
    given = options.tier_bytes or ()
    above = len(options.tiers) - 1
    return [*given[:above], *[float(DEFAULT_TIER_BYTES)] * (above - len(given)), math.inf]


def _most_in_host_memory(options, row):
    """How many rows of so many bytes host memory holds below GPU memory."""
    return _limits_of(options)[1] / (row + HEAD_BYTES)


def _limit_of_hbm(rows, hbm_bytes, of_key, most_below):
    """The bytes of GPU memory for rows there, without those for what is there of each row in host
    memory: all other rows, or as many as fit."""
    below = min(HBM_BYTES_OF_ROW_BELOW, of_key - 1)
    beside_all = (hbm_bytes - rows * below) * of_key / (of_key - below)
    return max(0.0, beside_all, hbm_bytes - most_below * below)
