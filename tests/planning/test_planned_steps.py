"""Steps that `ge.plan` computes, beside recorded ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from planning.test_plan import feature

import group_embedding as ge
from group_embedding.keras_compat import keras

SEED = 11
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def recorded_runs():
    """The recorded runs of a DLRM's tables over two and four GPUs."""
    rows = json.loads((RESULTS / "bench_dlrm_ranks_h200.json").read_text())["rows"]
    return [row for row in rows if "tables_step_ms" in row and row["through"] != "horovod"]


def plan_run(row):
    """The plan of a recorded run with a batch of such ids, on this machine."""
    keyed = {"tiers": ["hbm"]} if row["keyed"] else {"num_rows": row["rows"]}
    features = [feature(f"{i}", 128, **keyed) for i in range(26)]
    ids = np.random.default_rng(SEED).integers(0, row["rows"], [26, row["batch"], 1])
    return ge.plan(
        features,
        batches=[{f"{i}": ids[i] for i in range(26)}],
        keys={f"{i}": row["rows"] for i in range(26)} if row["keyed"] else None,
        ranks=row["ranks"],
        hbm=80 << 30,
        machine="h200",
        through=row["through"],
    )


# The table of docs/guides/keyed_tables.md: planned steps by recorded ones.
@pytest.mark.parametrize(
    "batch, keyed, num_runs, least, most",
    [
        (1024, False, 5, 0.84, 1.15),
        (1024, True, 1, 0.85, 0.85),
        (32768, False, 4, 0.82, 0.89),
        (32768, True, 1, 0.85, 0.85),
    ],
)
def test_planned_steps_of_recorded_runs(batch, keyed, num_runs, least, most):
    rows = [row for row in recorded_runs() if (row["batch"], row["keyed"]) == (batch, keyed)]
    assert len(rows) == num_runs
    shares = [plan_run(row).step.total / row["tables_step_ms"] for row in rows]
    assert (min(shares), max(shares)) == pytest.approx((least, most), abs=0.01)


@pytest.mark.parametrize(
    "name, busy", [("compiled_h200", []), ("compiled_2048_h200", []), ("compiled_h100", [0])]
)
def test_planned_steps_of_one_gpu(name, busy):
    # Given the recorded steps of a DLRM's tables, ten a call, without those of a busy machine
    runs = json.loads((RESULTS / f"bench_dlrm_{name}.json").read_text())["rows"]
    runs = [
        run for i, run in enumerate(runs) if i not in busy and run.get("model", "dlrm") == "dlrm"
    ]
    assert runs and not any(run["keyed"] for run in runs)
    for run in runs:
        # When they are planned, without the time in which the program issues each
        ids = np.random.default_rng(SEED).integers(0, run["rows"], [26, run["batch"], 1])
        planned = ge.plan(
            [feature(f"{i}", 128, num_rows=run["rows"]) for i in range(26)],
            batches=[{f"{i}": ids[i] for i in range(26)}],
            hbm=80 << 30,
            machine=name[-4:],
            program_ms=0.0,
        )
        # Then a step takes nearly the time that was measured
        assert planned.step.total == pytest.approx(run["several_tables_step_ms"], rel=0.13), run


@pytest.mark.parametrize("rule", ["sgd", "rowwise_adagrad", "adagrad"])
@pytest.mark.parametrize("rows", ["all in GPU memory", "a tenth in GPU memory"])
def test_planned_steps_of_tables_in_two_memories(rows, rule):
    # Given the recorded steps on an H100 of a table of keys by Zipf's law, and such ids
    recorded = json.loads((RESULTS / "bench_tiers_prefetch_h100.json").read_text())
    (measured,) = [
        row["step ms"]
        for row in recorded["rows"]
        if (row["library"], row["rule"], row["rows"]) == ("group_embedding", rule, rows)
    ]
    optimizer = {
        "sgd": keras.optimizers.SGD(0.1),
        "rowwise_adagrad": ge.optimizers.RowwiseAdagrad(0.1),
        "adagrad": keras.optimizers.Adagrad(0.1),
    }[rule]
    num_keys, of_slots = 8_000_000, {"sgd": 0, "rowwise_adagrad": 4, "adagrad": 4 * 128}[rule]
    shares = np.cumsum(1 / np.arange(1, num_keys + 1) ** 1.05)
    random = np.random.default_rng(SEED)
    ids = np.searchsorted(shares / shares[-1], random.random([2, 1 << 20, 1]))
    storage = {"tiers": ["hbm"]}
    if rows.startswith("a tenth"):
        row_bytes = 4 * 128 + of_slots + 49
        storage = {"tiers": ["hbm", "dram"], "tier_bytes": [num_keys // 10 * row_bytes]}

    # When it is planned
    found = ge.plan(
        [feature("user", 128, **storage)],
        batches=[{"user": of_batch} for of_batch in ids],
        keys={"user": num_keys},
        optimizer=optimizer,
        hbm=80 << 30,
        dense_ms=recorded["about"]["dense ms"],
    )

    # Then its step takes nearly the time that was measured
    assert found.step.total == pytest.approx(measured, rel=0.16)


@pytest.mark.parametrize("tiers", [["hbm"], ["hbm", "dram"], ["dram"]], ids="+".join)
def test_rows_below_gpu_memory_alone_cross_the_bus(tiers):
    # Given two tables whose budget leaves no place to many of the sample's keys
    options = {"tiers": tiers, "max_keys": 1000, "budget_of": "rank"}
    features = [feature(name, 16, **options) for name in ("users", "items")]
    random = np.random.default_rng(SEED)
    batches = [{f.name: random.integers(0, 5000, [2000, 1]) for f in features} for _ in range(4)]

    # When they are planned with less GPU memory than they want, Then rows in host memory cross
    found = ge.plan(features, batches=batches, hbm=8000)
    assert found.tables["users"].keys == 1000
    assert (found.step.host_memory > 0) == (tiers == ["hbm", "dram"])
