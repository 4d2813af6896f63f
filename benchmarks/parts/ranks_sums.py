"""The step of two ranks on two hosts whose owners send rows, sums of a sample's rows, or their
columns of such sums: hosts are namespaces of this machine, joined by the relay of tests/hosts.
Needs root.

A step looks up 4 tables of 200,000 rows of dim 32, so many ids for each of 1,024 samples a rank,
and trains them by Adagrad. `rows`, `sums` and `columns` take blocks of steps in turn in one job;
milliseconds are rank 0's medians, megabytes what it sends in a step, `expected` what
`ge.place_tables` computes, and `chosen` the placement that it takes.

    python benchmarks/bench_ranks.py sums [--ids 1 5 20 50] [--alphas 0 1.05] [--rates 0 1000]
                                          [--dim 32] [--table-rows 200000] [--delay 5] [--rounds 4]
"""

import sys
import time
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_FOLDER), str(_FOLDER.parent / "tests")]  # for the ranks, too

import numpy as np  # noqa: E402
from hosts.job import Job  # noqa: E402
from hosts_and_ranks import joined_hosts  # noqa: E402
from report import machine  # noqa: E402
from workloads import ids_from_uniform  # noqa: E402

NUM_TABLES, BATCH_SIZE = 4, 1024
PLACEMENTS = {"rows": "distributed", "sums": "distributed:sums", "columns": "columns:sums"}
WARM_UP, STEPS_OF_BLOCK = 2, 6
TIMEOUT = 300  # seconds


def features_of(name, shape, placement):
    import group_embedding as ge

    return [
        ge.FeatureConfig(f"{t}", ge.TableConfig(f"{name}_{t}", *shape, placement=placement))
        for t in range(NUM_TABLES)
    ]


def make_step(kind, shape):
    import tensorflow as tf

    import group_embedding as ge

    layer = ge.layers.GroupEmbedding(features_of(kind, shape, PLACEMENTS[kind]), concat=True)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))

    @tf.function(reduce_retracing=True)
    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(batch)))
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return step


def train(num_ids, alpha, shape, num_rounds):
    """Returns {kind: (milliseconds of its steps, bytes that a step sends)}, and the plan's
    (expected bytes by kind, placement chosen)."""
    import tensorflow as tf

    import group_embedding as ge

    ge.enable_distributed_strategy()
    exchange = ge.exchange.current()
    generator = np.random.default_rng(exchange.rank)

    def draw():
        uniform = generator.random([NUM_TABLES, BATCH_SIZE, num_ids])
        floor = lambda u: np.floor(u).astype(np.int64)  # noqa: E731
        ids = ids_from_uniform(uniform, shape[0], alpha, floor)
        return {f"{t}": tf.constant(of_table) for t, of_table in enumerate(ids)}

    batches = [draw() for _ in range(3)]
    steps = {kind: make_step(kind, shape) for kind in PLACEMENTS}
    found = {kind: ([], []) for kind in PLACEMENTS}
    for _ in range(num_rounds):
        for kind, step in steps.items():
            for i in range(WARM_UP + STEPS_OF_BLOCK):
                before, begin = sum(exchange.use().sent_bytes), time.perf_counter()
                float(step(batches[i % len(batches)]))
                if i >= WARM_UP:
                    found[kind][0].append(1e3 * (time.perf_counter() - begin))
                    found[kind][1].append(sum(exchange.use().sent_bytes) - before)
    return found, plan(batches, shape)


def plan(batches, shape):
    """({kind: expected bytes}, the placement chosen of the first table)"""
    import group_embedding as ge

    def placed(word):
        given = {"batches": batches, "ranks": 2, "hosts": 2, "dry_run": True}
        return ge.place_tables(features_of("planned", shape, word), **given).tables

    expected = {
        kind: sum(table.sent_bytes for table in placed(word).values())
        for kind, word in PLACEMENTS.items()
    }
    return expected, placed(None)["planned_0"].placement


def measure(bed, starter, folder, options, num_ids, alpha, rate):
    bed.set_link("a", "b", delay=options.delay, rate=rate)
    name = f"{num_ids}_{alpha:g}_{rate:g}"
    given = num_ids, alpha, (options.table_rows, options.dim), options.rounds
    job = Job(bed, starter, "ab", folder / name, train, given, TIMEOUT)
    found, (expected, chosen) = job.results()[0]
    row = {"dim": options.dim, "ids": num_ids, "alpha": alpha}
    row.update({"delay_ms": options.delay, "mbit": rate})
    for kind, (milliseconds, sent) in found.items():
        row[f"{kind}_ms"] = float(np.median(milliseconds))
        row[f"{kind}_mb"] = float(np.median(sent)) / 1e6
        row[f"{kind}_expected_mb"] = expected[kind] / 1e6
    for kind in ("sums", "columns"):
        row[f"rows_ms / {kind}_ms"] = row["rows_ms"] / row[f"{kind}_ms"]
    row["chosen"] = chosen
    return row


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys((row["alpha"], row["mbit"]) for row in rows))
    figure, axes = plt.subplots(1, len(cases), figsize=(9, 3.5), sharey=True, squeeze=False)
    for axis, (alpha, mbit) in zip(axes[0], cases):
        of_case = [row for row in rows if (row["alpha"], row["mbit"]) == (alpha, mbit)]
        for k, kind in enumerate(PLACEMENTS):
            places = np.arange(len(of_case)) + k * 0.27
            axis.bar(places, [row[f"{kind}_ms"] for row in of_case], 0.27, label=kind)
        axis.set_xticks(np.arange(len(of_case)) + 0.27, [row["ids"] for row in of_case])
        ids = f"Zipf {alpha:g}" if alpha else "uniform ids"
        axis.set_title(f"{ids}, {f'{mbit:g} Mbit/s' if mbit else 'unlimited'}", fontsize=9)
        axis.set_xlabel("ids a sample")
    axes[0][0].set_ylabel("ms a step")
    axes[0][0].legend(fontsize=8)
    dims = ", ".join(str(dim) for dim in sorted({row["dim"] for row in rows}))
    title = f"Rows, sums and columns of dim {dims} between two hosts, {about['date']}"
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def add_options(parser):
    parser.add_argument("--ids", type=int, nargs="+", default=[1, 5, 20, 50], help="of a sample")
    parser.add_argument("--alphas", type=float, nargs="+", default=[0, 1.05])
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0, 1000], help="Mbit/s of the link; 0: unlimited"
    )
    parser.add_argument("--dim", type=int, default=32, help="of the tables")
    parser.add_argument("--table-rows", type=int, default=200_000, help="of a table")
    parser.add_argument("--delay", type=float, default=5, help="of the link, ms one way")
    parser.add_argument("--rounds", type=int, default=4)


def run(options):
    rows = []
    with joined_hosts() as (bed, starter, folder):
        for rate in options.rates:
            for alpha in options.alphas:
                for num_ids in options.ids:
                    rows.append(measure(bed, starter, folder, options, num_ids, alpha, rate))
    return machine(), rows
