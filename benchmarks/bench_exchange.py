#!/usr/bin/env python3
"""The tables of bench_collective.py's workloads through TensorFlow, by each transport between GPUs:
written into each other's memory (peer_memory), sent by NCCL, or by Horovod's alltoall.

Each rank looks up a batch of its own; a step is forward, backward and row-wise Adagrad. Every
transport is a job of its own, on the same ids. Milliseconds are the slowest rank's: the median of
rounds of ten consecutive steps. MB a step counts the ids, rows and gradients that a rank requests
from others, each once.

    python benchmarks/bench_exchange.py [--ranks 2] [--transports horovod nccl peer_memory]
                                        [--workloads dcnv2_cap4M ...] [--alphas 0 1.05]
                                        [--json FILE] [--plot FILE.png]

Without GPUs, host memory replaces peer memory and NCCL; `--batch` and `--rows` limit the workloads
to what fits a CPU.
"""

import argparse
import itertools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import numpy as np
import tensorflow as tf
from report import machine, print_table, write_results
from tensorflow_ranks import (
    TRANSPORTS,
    device_name,
    make_spread_table,
    median_ms,
    run_on_ranks,
    start_ranks,
    transport_of,
    write_of_rank,
)
from workloads import ALPHAS, COLLECTIVE, WORKLOADS, ids_from_uniform

import group_embedding as ge

NUM_SETS = 3  # of ids, which steps take by turns


class Tables:
    """This rank's part of a workload's tables, its ids, and steps of these alone."""

    def __init__(self, workload, alpha):
        w, self.exchange = workload, ge.exchange.current()
        self._tables = [
            make_spread_table(r, d, f"table_{t}") for t, (r, d) in enumerate(zip(w.rows, w.dims))
        ]
        generator = np.random.default_rng([w.batch, self.exchange.rank])
        sets = [_draw_ids(w, alpha, generator) for _ in range(NUM_SETS)]
        self.bytes_on_the_wire = max(self._bytes_of(ids, w.dims) for ids in sets)
        sets = [[tf.identity(tf.constant(of_table)) for of_table in ids] for ids in sets]
        self._sets = itertools.cycle(sets)
        splits = [tf.constant(np.arange(w.batch + 1) * h) for h in w.hotness]
        cotangent = tf.random.normal([w.batch, sum(w.dims)])
        optimizer = ge.DistributedOptimizer(ge.optimizers.RowwiseAdagrad(1e-3))
        optimizer.build(self._tables)

        def look_up(ids):
            bags = [
                tf.RaggedTensor.from_row_splits(of_table, s, validate=False)
                for of_table, s in zip(ids, splits)
            ]
            return ge.group_embedding_lookup_sparse(self._tables, bags, "sum", concat=True)

        @tf.function(autograph=False)
        def forward(ids):
            return look_up(ids)[0, 0]

        @tf.function(autograph=False)
        def step(ids):
            with tf.GradientTape() as tape:
                vectors = look_up(ids)
            gradients = tape.gradient(vectors, self._tables, cotangent)
            optimizer.apply_gradients(zip(gradients, self._tables))
            return vectors[0, 0]

        self._forward, self._step = forward, step

    def forward(self):
        return self._forward(next(self._sets))

    def step(self):
        return self._step(next(self._sets))

    def _bytes_of(self, ids, dims):
        """Bytes sent for unique rows of other ranks: an id, a row and a gradient for each."""
        unique = [np.unique(of_table) for of_table in ids]
        asked = [np.sum(u % self.exchange.num_ranks != self.exchange.rank) for u in unique]
        return int(sum(n * (8 + 2 * 4 * dim) for n, dim in zip(asked, dims)))


def _draw_ids(workload, alpha, generator):
    return [
        ids_from_uniform(
            generator.random(h * workload.batch), r, alpha, lambda x: x.astype(np.int64)
        )
        for h, r in zip(workload.hotness, workload.rows)
    ]


def measure(args):
    """Measures all cases on one rank of a job, by one transport."""
    start_ranks(args.through)
    figures = []
    for workload, alpha in cases_of(args):
        tables = Tables(workload, alpha)
        figures.append({
            "through": transport_of(args.through),
            "forward ms": median_ms(tables.forward, args.steps),
            "step ms": median_ms(tables.step, args.steps),
            "MB a step": round(tables.bytes_on_the_wire / 1e6, 1),
            "device": device_name(),
        })  # fmt: skip
        del tables
    write_of_rank(args.measure, figures)


def cases_of(args):
    for name, alpha in itertools.product(args.workloads, args.alphas):
        workload = WORKLOADS[name]
        yield workload.shrunk(args.batch or workload.batch, args.rows or max(workload.rows)), alpha


def run(args, transport):
    """Runs one transport. Returns the rows of the table, and the machine that they were measured
    on."""
    options = ["--through", transport, "--steps", str(args.steps), "--workloads", *args.workloads]
    options += ["--alphas", *map(str, args.alphas)]
    options += ["--batch", str(args.batch)] if args.batch else []
    options += ["--rows", str(args.rows)] if args.rows else []
    ranks = run_on_ranks(args.ranks, [__file__, *options, "--measure"])
    rows = []
    for (workload, alpha), of_ranks in zip(cases_of(args), zip(*ranks)):
        slowest = {
            name: max(f[name] for f in of_ranks) for name in ("forward ms", "step ms", "MB a step")
        }
        about = {"workload": workload.name, "samples a rank": workload.batch, "alpha": alpha}
        rows.append(about | {"ranks": args.ranks, "through": of_ranks[0]["through"]} | slowest)
    return rows, ranks[0][0]["device"]


def beside_horovod(rows):
    """Adds to each row its speed relative to Horovod's alltoall."""
    of = {(r["workload"], r["alpha"]): r for r in rows if r["through"] == "horovod"}
    for row in rows:
        horovod = of.get((row["workload"], row["alpha"]))
        for part in ("forward", "step"):
            ratio = horovod and round(horovod[f"{part} ms"] / row[f"{part} ms"], 2)
            row[f"{part}, times Horovod"] = ratio
    return rows


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    colors = dict(
        zip(
            ("peer_memory", "nccl", "horovod", "host"),
            ("tab:red", "tab:orange", "tab:gray", "tab:blue"),
        )
    )
    figure, axis = plt.subplots(figsize=(9, 0.4 * len(rows) + 1.6))
    y = np.arange(len(rows))
    axis.barh(y, [r["step ms"] for r in rows], color=[colors[r["through"]] for r in rows])
    axis.barh(y, [r["forward ms"] for r in rows], color="black", alpha=0.25, height=0.35)
    for at, row in zip(y, rows):
        ratio = row["step, times Horovod"]
        text = f" {row['step ms']:.3g} ms" + (f", {ratio:.1f} x" if ratio else "")
        axis.text(row["step ms"], at, text, va="center", fontsize=8)
    labels = [f"{r['workload']}, alpha {r['alpha']:g}\n{r['through']}" for r in rows]
    axis.set_yticks(y, labels, fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlim(0, 1.2 * max(r["step ms"] for r in rows))
    axis.set_xlabel("ms: a step (bar), its forward pass (thin bar)")
    device = about.get("device") or about["cpu"]
    axis.set_title(f"Tables over {rows[0]['ranks']} ranks through TensorFlow, {device}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--transports", nargs="+", default=list(reversed(TRANSPORTS)), choices=TRANSPORTS
    )
    parser.add_argument("--workloads", nargs="+", default=COLLECTIVE, choices=COLLECTIVE)
    parser.add_argument("--alphas", nargs="+", type=float, default=list(ALPHAS))
    parser.add_argument("--steps", type=int, default=30, help="that are timed, in rounds of ten")
    parser.add_argument("--batch", type=int, help="samples a rank, at most")
    parser.add_argument("--rows", type=int, help="of each table, at most")
    parser.add_argument("--json")
    parser.add_argument("--plot")
    parser.add_argument("--through", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args)
        return
    about, rows = machine() | {"tensorflow": tf.__version__}, []
    for transport in args.transports:
        new_rows, about["device"] = run(args, transport)
        rows = beside_horovod(rows + new_rows)
        print_table(new_rows)
    order = {name: n for n, name in enumerate(args.workloads)}
    rows.sort(key=lambda row: (order[row["workload"]], row["alpha"]))
    write_results(args, about, rows, plot)


if __name__ == "__main__":
    main()
