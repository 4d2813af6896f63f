"""`ge.place_tables`: where each table of a model lies over ranks and hosts, chosen by bytes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from group_embedding.config import FeatureConfig, check_int, check_not_negative
from group_embedding.optimizers.rules import ROW_RULES
from group_embedding.placement import DISTRIBUTED
from group_embedding.planning import placement_text
from group_embedding.planning.choose_placements import (
    SMALL_BYTES,
    PlacementChooser,
    simulated_placement,
)
from group_embedding.planning.model_features import (
    features_as_trained,
    features_of,
    leaves_out_invalid,
    optimizer_of,
    replace_tables,
)
from group_embedding.planning.plan_tables import plan_tables
from group_embedding.planning.sample import read_sample
from group_embedding.ranks.exchange.active import current
from group_embedding.ranks.exchange.gather_strings import gather_text
from group_embedding.ranks.simulate import (
    CPU,
    MACHINES,
    Job,
    Network,
    StepTime,
    cpu_of,
    network_of,
    step_time,
)


@dataclasses.dataclass(frozen=True)
class PlacedTable:
    """The placement of one table, and the reason for it.

    Attributes:
        name: of the table.
        placement: as of `TableConfig`.
        reason: for a person.
        sent_bytes: what a rank sends for it in a step over the slower link that the job has:
            between hosts, or within the only host.
        memory_bytes: its rows and slots on the rank that has most of them.
    """

    name: str
    placement: str
    reason: str
    sent_bytes: float
    memory_bytes: float


@dataclasses.dataclass(frozen=True)
class TablePlacements:
    """The placements that `ge.place_tables` chose; `print` shows them as a table.

    Attributes:
        features: FeatureConfigs whose tables have the placements chosen, to make the layer of.
        tables: a PlacedTable by the name of the table.
        crossings: how often a step of the tables waits for messages of other ranks: one way each.
        step: the parts of the time of a step of the tables, whose `total` is milliseconds.
        ranks, hosts: of the job.
    """

    features: list[FeatureConfig]
    tables: dict[str, PlacedTable]
    crossings: int
    step: StepTime
    ranks: int
    hosts: int

    def __str__(self) -> str:
        return placement_text.as_table(self)


def place_tables(
    model: Any,
    *,
    batches: Iterable[Any],
    ranks: int | None = None,
    hosts: int | None = None,
    optimizer: Any = None,
    dtype: str | None = None,
    whole_bytes: int = SMALL_BYTES,
    machine: str = CPU.name,
    cores: int = 1,
    network: Network | None = None,
    dry_run: bool = False,
) -> TablePlacements:
    """Chooses where each table lies, by the bytes that a step sends and those of memory.

    A table is kept whole on each rank if its rows and slots take 16 KiB or less, and up to
    `whole_bytes` if that sends the fewest bytes. Rows of other tables, and of tables of keys, are
    spread over the ranks. They cross between hosts once a host, whose ranks share them, where the
    ranks of a host ask for a row of another 1.5 times or more; that needs tables in host memory,
    and several ranks on each of several hosts. Owners send sums of a sample's rows where these are
    at most 0.8 of the bytes of rows; sums need no sequences of the table, no feature with weights,
    and on GPUs a table without keys. Columns of a table of rows are spread, and sent as sums or
    not, where that takes at most 0.8 of the bytes of both, or of the rows of the rank that is asked
    for most; they need a dim that the ranks divide, an optimizer that updates each number of a row
    by itself, and, but for sums, tables in host memory. Placements that configs name stay, but for
    "auto".

    In a job, all ranks call it, and get the placements that rank 0 chose, which prints them. With
    `dry_run=True` a process computes and prints them for any number of ranks and hosts.

    Args:
        model: a `GroupEmbedding` that is not built, a Keras model, or a list of FeatureConfigs.
        batches: a sample: dicts of ids by feature, or tuples that begin with one; the first one is
            as large as the batch of a rank.
        ranks, hosts: how many, for a dry run: by default those of this job.
        optimizer: a Keras optimizer; None: the one that the model is compiled with, or rows without
            slots.
        dtype: of rows of tables that name none; None: that of their layer, or "float32".
        whole_bytes: see above.
        machine: where tables lie, "cpu", "h100" or "h200"; on GPUs, of which each rank has one, no
            owner sends columns of rows, and no ranks share rows.
        cores: how many of a CPU a rank has.
        network: the links between hosts, a `ge.simulate.Network`, whose `round_trips` are not read;
            None: 50 GB/s a rank and a round trip of 0.02 ms.
        dry_run: whether to compute only.

    Returns:
        TablePlacements.

    Raises:
        ValueError: a number or `machine` is not as above, ranks or hosts are given without
            `dry_run`, a feature has no ids in a batch, or a config has a placement that the table
            cannot have over the ranks: columns that they do not divide, columns of keys, keys whole
            on each rank, or a rank that there is not.

    Example:

    >>> random = np.random.default_rng(1)
    >>> history = ge.FeatureConfig("history", ge.TableConfig("items", 1_000_000, 64))
    >>> day = ge.FeatureConfig("day", ge.TableConfig("days", 7, 16))
    >>> batches = [{"history": random.integers(0, 10**6, [512, 50]),
    ...             "day": random.integers(0, 7, [512, 1])}]
    >>> found = ge.place_tables([history, day], batches=batches, ranks=4, hosts=2, dry_run=True)
    ... # doctest: +ELLIPSIS
    placement of 2 tables over 4 ranks on 2 hosts:
    ...
    >>> [table.placement for table in found.tables.values()]
    ['distributed:sums', 'replicated']
    """
    ranks, hosts = _job_of(ranks, hosts, dry_run)
    _check(whole_bytes, machine, cores)
    network = network_of(network)
    features, optimizer = features_as_trained(model, dtype), optimizer or optimizer_of(model)
    sample = read_sample(batches, features, leaves_out_invalid(model))
    # Over ranks, of which the plan counts all rows.
    spread = replace_tables(features, lambda t: dataclasses.replace(t, placement=DISTRIBUTED))
    plans = plan_tables(spread, sample, optimizer=optimizer, ranks=ranks)
    is_on_gpus = machine != CPU.name
    per_host = -(-ranks // hosts)
    job = Job(ranks, per_host, sample.batch_size, gathers_ids=is_on_gpus)
    chooser = PlacementChooser(
        features,
        sample,
        plans,
        job,
        whole_bytes,
        is_in_host_memory=not is_on_gpus and (dry_run or _are_tables_in_host_memory()),
        is_on_gpus=is_on_gpus and (dry_run or current().nccl_ranks is not None),
        may_have_columns=not _needs_whole_rows(optimizer),
    )
    words = {name: chooser.choose(name) for name in plans}
    if not dry_run and current().strategy is None:
        words = _of_first_rank(words)
    speeds = cpu_of(cores) if machine == CPU.name else MACHINES[machine]
    names = [feature.table.name for feature in features]
    placed = _with_placements(features_of(model), names, words)
    found = _placed(placed, chooser, words, job, speeds, network)
    if dry_run or current().rank == 0:
        print(found)
    return found


_OWNER = "ge.place_tables"


def _job_of(ranks, hosts, dry_run):
    """(number of ranks, number of hosts)"""
    for name, number in (("ranks", ranks), ("hosts", hosts)):
        if number is not None and not dry_run:
            raise ValueError(
                f"{name}: expected none without dry_run=True, as tables are placed over the "
                f"{current().num_ranks} ranks of this job, got {number}"
            )
        if number is not None:
            check_int(_OWNER, name, number, at_least=1)
    use = current().use()
    ranks = ranks or current().num_ranks
    hosts = hosts or (len(set(use.hosts)) if use is not None and not dry_run else 1)
    if hosts > ranks:
        raise ValueError(f"hosts: expected at most one for each of {ranks} ranks, got {hosts}")
    return ranks, hosts


def _check(whole_bytes, machine, cores):
    check_not_negative(_OWNER, "whole_bytes", whole_bytes)
    machines = [CPU.name, *sorted(MACHINES)]
    if machine not in machines:
        raise ValueError(f"machine: expected one of {', '.join(machines)}, got {machine!r}")
    check_int(_OWNER, "cores", cores, at_least=1)


def _are_tables_in_host_memory():
    """Returns whether tables of this job may have owners that send sums, or columns: ranks are
    processes, and see no GPU on which their tables would be."""
    return current().strategy is None and not tf.config.get_visible_devices("GPU")


def _needs_whole_rows(optimizer):
    """Returns whether an optimizer's rule refuses columns of a row."""
    spec = getattr(optimizer, "_ge_rule_spec", None)
    return spec is not None and spec().rule in ROW_RULES


def _of_first_rank(words):
    """{table: (placement, reason)} as rank 0 has them."""
    texts = gather_text(current(), json.dumps(words), "place_tables")
    return {name: tuple(word) for name, word in json.loads(texts[0]).items()}


def _placed(features, chooser, words, job, speeds, network):
    """The TablePlacements of {table: (placement, reason)}."""
    tables = {
        name: PlacedTable(name, word, reason, chooser.sent(name, word), chooser.memory(name, word))
        for name, (word, reason) in words.items()
    }
    crossings = max(chooser.crossings(name, word) for name, (word, _) in words.items())
    network = dataclasses.replace(network, round_trips=crossings / 2)
    ways = [simulated_placement(words[name][0]) for name in chooser.models]
    step = step_time(list(chooser.models.values()), job, speeds, network, ways)
    return TablePlacements(features, tables, crossings, step, job.ranks, job.hosts)


def _with_placements(features, names, words):
    """The features with the placements chosen.

    Args:
        names: of the tables in `words`, for each feature.
    """
    placements = {id(f.table): words[name][0] for f, name in zip(features, names)}
    return replace_tables(
        features, lambda table: dataclasses.replace(table, placement=placements[id(table)])
    )
