"""Computed times of a step beside those that were measured on one, two and four GPUs."""

import dataclasses
import json
from pathlib import Path

import pytest

from group_embedding.ranks.simulate import (
    MACHINES,
    Job,
    Network,
    TableOfModel,
    ZipfIds,
    cpu_of,
    step_time,
)
from group_embedding.ranks.simulate.models import tables_of_model

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
LARGEST_ERROR = 0.25
# The hosts of the test bed: what its relay carries a second where no rate is set, and the cost of a
# message by TCP; both, as `CPU.tcp_gb_s`, were fitted to the runs of `placements_over_hosts`.
RELAY_GB_S, MESSAGE_US = 0.279, 1270.0
# Runs of those that are not near, on a machine that other processes kept busy.
BUSY_RUNS = {
    # (file, kind, ids of a sample, alpha, Mbit/s): computed / measured
    ("sums", "sums", 5, 0, 0): 1.31,
    ("sums", "sums", 50, 0, 0): 0.67,
    ("sums", "rows", 20, 1.05, 0): 0.60,
    ("sums", "sums", 20, 1.05, 0): 0.54,
    ("sums", "sums", 50, 1.05, 0): 0.59,
}


def rows_of(name):
    return json.loads((RESULTS / name).read_text())["rows"]


def runs_of_gpus(exchange):
    """(tables, job, measured ms) of each run whose ranks exchange ids and rows, or do not."""
    for row in rows_of("bench_ranks_gpus_h200.json"):
        if (row["transport"] != "one GPU") != exchange:
            continue
        workload, _, few = row["workload"].partition(", ")
        transport, _, wire = row["transport"].partition(", ")
        is_dcnv2 = workload == "dcnv2_cap4M"
        tables = tables_of_model("dcnv2" if is_dcnv2 else "dlrm", row["alpha"])
        tables = [capped(table, 4_000_000) for table in tables]
        samples = 16 if few else 32768 if is_dcnv2 else 65536
        wire_bytes = 2 if wire else 4
        through = transport if exchange else "nccl"
        job = Job(row["GPUs"], 8, samples, wire_bytes=wire_bytes, through=through)
        yield tables, job, row["step ms"]


def capped(table, rows):
    rows = min(table.rows, rows)
    return dataclasses.replace(table, rows=rows, source=ZipfIds(rows, table.source.alpha))


def test_tables_over_two_gpus():
    # Given each recorded run of the tables' step over ranks
    runs = list(runs_of_gpus(exchange=True))
    assert len(runs) == 40
    # When its time is computed, where one rank exchanges rows with itself, Then it is near
    h200 = MACHINES["h200"]
    h200 = dataclasses.replace(h200, alone_moves=h200.asked_moves)
    for tables, job, measured in runs:
        computed = step_time(tables, job, h200).total
        assert computed == pytest.approx(measured, rel=LARGEST_ERROR), job


def test_tables_of_one_gpu():
    # Given each recorded run of a rank alone, without TensorFlow's part of a step's launches
    runs = [run for run in runs_of_gpus(exchange=False) if run[1].samples > 16]
    assert len(runs) == 4
    h200 = dataclasses.replace(MACHINES["h200"], launch_ms=0.07)
    # When its time is computed, Then it is near
    for tables, job, measured in runs:
        computed = step_time(tables, job, h200).total
        assert computed == pytest.approx(measured, rel=0.1), job


def test_tables_over_ranks_of_a_cpu():
    # Given the recorded runs of one rank with two cores, and of two ranks with one each
    rows = rows_of("bench_ranks_cpus.json")
    assert len(rows) == 8
    for row in rows:
        shape, dim = row["features x batch x ids, dim"].split(", ")
        features, samples, ids = map(int, shape.split(" x "))
        source = ZipfIds(100_000, row["alpha"])
        table = TableOfModel("", 100_000, int(dim), ids, source)
        job = Job(row["ranks"], 8, samples // row["ranks"])
        # When its time is computed, Then it is near
        computed = step_time([table] * features, job, cpu_of(2 // row["ranks"])).total
        assert computed == pytest.approx(row["step ms"], rel=LARGEST_ERROR), row


def test_the_tables_of_a_dlrm_over_two_and_four_gpus():
    # Given the recorded runs of a DLRM, whose tables were timed alone
    rows = [r for r in rows_of("bench_dlrm_ranks_h200.json") if "tables_step_ms" in r]
    rows = [r for r in rows if not r["keyed"] and r["through"] != "horovod"]
    assert len(rows) == 9 and {r["ranks"] for r in rows} == {2, 4}
    for row in rows:
        tables = [
            TableOfModel(f"{i}", row["rows"], 128, 1, ZipfIds(row["rows"])) for i in range(26)
        ]
        job = Job(row["ranks"], 8, row["batch"], through=row["through"])
        # When a step is computed, Then it is near
        h200 = MACHINES["h200"]
        computed = step_time(tables, job, h200, program_ms=h200.program_of(26)).total
        assert computed == pytest.approx(row["tables_step_ms"], rel=LARGEST_ERROR), row


def bed(delay, round_trips, mbit=0):
    """The link of the test bed: milliseconds one way, and its rate; 0: none is set."""
    return Network(mbit / 8e3 or RELAY_GB_S, 2 * delay, round_trips, MESSAGE_US)


def placements_over_hosts():
    """(name, tables, placement, network, measured ms) of each run of two ranks on two hosts."""
    ways = {"rows": "rows", "sums": "owner_sums", "columns": "columns"}
    for file, rows in {"sums": 200_000, "columns": 50_000}.items():
        for row in rows_of(f"bench_ranks_{file}.json"):
            table = TableOfModel(
                "", rows, row.get("dim", 32), row["ids"], ZipfIds(rows, row["alpha"])
            )
            table = dataclasses.replace(table, column_parts=2)
            network = bed(row["delay_ms"], 1.5, row["mbit"])
            for kind in (kind for kind in ways if f"{kind}_ms" in row):
                name = file, kind, row["ids"], row["alpha"], row["mbit"]
                yield name, [table] * 4, ways[kind], network, row[f"{kind}_ms"]


def test_rows_sums_and_columns_between_two_hosts_of_the_test_bed():
    # Given each recorded run of two ranks with a core each on two hosts
    runs = list(placements_over_hosts())
    assert len(runs) == 56
    # When its time is computed
    ratios = {
        name: step_time(tables, Job(2, 1, 1024), cpu_of(1), network, placement).total / measured
        for name, tables, placement, network, measured in runs
    }
    # Then it is near, but for those of a busy machine
    far = {name: ratio for name, ratio in ratios.items() if abs(ratio - 1) > LARGEST_ERROR}
    assert far == pytest.approx(BUSY_RUNS, abs=0.02)


def keyed_tables(alpha):
    """The tables of `bench_ranks.py hosts` and `ahead`: each of 4,096 ids is an output."""
    return [TableOfModel("", 200_000, 32, 1, ZipfIds(200_000, alpha))] * 4


def test_steps_by_the_delay_of_the_link_of_the_test_bed():
    # Given the recorded runs, none of which a speed was fitted to
    rows = rows_of("bench_ranks_hosts.json")
    assert len(rows) == 8
    far = {}
    for row in rows:
        network = bed(row["delay_ms"], row["round_trips"])
        # When their time is computed, with two messages more for the mean of dense gradients
        dense = 2e-3 * MESSAGE_US if row["dense"] else 0.0
        step = step_time(keyed_tables(0), Job(2, 1, 4096), cpu_of(1), network, dense_ms=dense)
        ratio = step.total / row["step_ms"]
        if abs(ratio - 1) > LARGEST_ERROR:
            far[row["dense"], row["delay_ms"]] = ratio
    # Then it is near, but for one
    assert far == pytest.approx({(True, 5): 1.28}, abs=0.02)


def test_steps_of_the_test_bed_with_a_device_that_computes():
    # Given the recorded runs that fetch rows in turn, and the time of their step without tables
    rows = rows_of("bench_ranks_ahead.json")
    assert len(rows) == 4
    for row in rows:
        network, dense = bed(row["delay_ms"], 1.5, row["mbit"]), row["dense_ms"]
        tables = keyed_tables(row["alpha"])
        # When their time is computed, Then it is near
        step = step_time(tables, Job(2, 1, 4096), cpu_of(1), network, dense_ms=dense)
        assert step.total == pytest.approx(row["in_turn_ms"], rel=LARGEST_ERROR), row
