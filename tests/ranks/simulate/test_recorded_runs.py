"""Computed times of a step beside those that were measured on one, two and four GPUs."""

import dataclasses
import json
from pathlib import Path

import pytest

from group_embedding.ranks.simulate import (
    MACHINES,
    Job,
    TableOfModel,
    ZipfIds,
    cpu_of,
    step_time,
)
from group_embedding.ranks.simulate.models import tables_of_model

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
LARGEST_ERROR = 0.25
# Hosts of two and of four GPUs: the time in which their program issues a step, of 1,024 samples.
PROGRAM_MS = {2: 1.31, 4: 1.6}


def rows_of(name):
    return json.loads((RESULTS / name).read_text())["rows"]


def collective_runs():
    """(tables, job, measured ms) of each run with the tables over ranks."""
    for row in rows_of("bench_ranks_gpus_h200.json"):
        if row["transport"] == "one GPU":
            continue  # with no ids to exchange
        workload, _, few = row["workload"].partition(", ")
        transport, _, wire = row["transport"].partition(", ")
        is_dcnv2 = workload == "dcnv2_cap4M"
        tables = tables_of_model("dcnv2" if is_dcnv2 else "dlrm", row["alpha"])
        tables = [capped(table, 4_000_000) for table in tables]
        samples = 16 if few else 32768 if is_dcnv2 else 65536
        wire_bytes = 2 if wire else 4
        job = Job(row["GPUs"], 8, samples, wire_bytes=wire_bytes, through=transport)
        yield tables, job, row["step ms"]


def capped(table, rows):
    rows = min(table.rows, rows)
    return dataclasses.replace(table, rows=rows, source=ZipfIds(rows, table.source.alpha))


def test_tables_over_two_gpus():
    # Given each recorded run of the tables' step over ranks
    runs = list(collective_runs())
    assert len(runs) == 40
    # When its time is computed, Then it is near
    for tables, job, measured in runs:
        computed = step_time(tables, job, MACHINES["h200"]).total
        assert computed == pytest.approx(measured, rel=LARGEST_ERROR), job


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
        program = PROGRAM_MS[row.get("gpus of the host", 4)]
        # When a step is computed, Then it is near
        computed = step_time(tables, job, MACHINES["h200"], program_ms=program).total
        assert computed == pytest.approx(row["tables_step_ms"], rel=LARGEST_ERROR), row
