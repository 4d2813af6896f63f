"""Tables spread over processes of one CPU, through TensorFlow: one process with all its cores
against ranks that share them, on the same batch.

A step is forward, backward and update of 26 tables of a `ge.layers.GroupEmbedding`, by a wrapped
Adagrad; each rank has its part of the batch. With `--dense N` the vectors go through N layers of
256 units; with `--wait MS` a step idles so long in the middle, as when another device computes.
With `--ahead` it is also measured with the next batch's ids exchanged during the step, the two
by turns. Milliseconds are a step's, the slowest rank's, the median of rounds of steps in a row.

    python benchmarks/bench_ranks.py cpus [--ranks 1 2] [--batch 2048] [--dense 4 --ahead]
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from report import machine
from tensorflow_ranks import run_on_ranks, write_of_rank
from workloads import ALPHAS, ids_from_uniform

import group_embedding as ge

NUM_FEATURES, NUM_SETS, ROUNDS, UNITS = 26, 4, 7, 256
SHAPE, IDS_EXCHANGED = "features x batch x ids, dim", ("in the step", "a step ahead")


@dataclass(frozen=True)
class Case:
    """26 features of one table each, ids uniform (alpha 0) or by Zipf's law."""

    hotness: int
    dim: int
    alpha: float


CASES = [Case(hotness, dim, alpha) for hotness, dim in [(1, 128), (5, 16)] for alpha in ALPHAS]


class Model:
    """Its step takes this rank's part of one of a few batches."""

    def __init__(self, case, args):
        exchange = ge.exchange.current()
        names = [f"f{i}" for i in range(NUM_FEATURES)]
        tables = [ge.TableConfig(f"{name}_table", args.rows, case.dim) for name in names]
        layer = ge.layers.GroupEmbedding(
            [ge.FeatureConfig(name, table, combiner="sum") for name, table in zip(names, tables)],
            concat=True,
        )
        dense = tf.keras.Sequential(
            [tf.keras.layers.Dense(UNITS, "relu") for _ in range(args.dense)]
        )
        if args.dense:
            dense.build([None, NUM_FEATURES * case.dim])
        optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
        optimizer = ge.DistributedOptimizer(optimizer)
        rng = np.random.default_rng(0)
        shape = (NUM_SETS, args.batch, NUM_FEATURES, case.hotness)
        ids = ids_from_uniform(
            rng.random(shape), args.rows, case.alpha, lambda x: x.astype(np.int64)
        )
        mine = ids[:, exchange.rank :: exchange.num_ranks]
        self._sets = [
            {name: tf.constant(ids[:, f]) for f, name in enumerate(names)} for ids in mine
        ]

        def train(batch, next_ids):
            with tf.GradientTape() as tape:
                vectors = dense(layer(batch))
                loss = tf.reduce_mean((wait(vectors, args.wait) if args.wait else vectors) ** 2)
            routed_next = None if next_ids is None else layer.route(next_ids)
            variables = layer.trainable_variables + dense.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss, routed_next

        self._route = tf.function(layer.route)
        self._step = tf.function(train)

    def milliseconds(self, num_steps, ahead):
        """Milliseconds per step with ids exchanged in the step and, if `ahead`, a step ahead."""
        times_of = {self._steps: [], **({self._steps_ahead: []} if ahead else {})}
        for _ in range(ROUNDS + 1):
            for run, times in times_of.items():
                times.append(run(num_steps))
        return [statistics.median(times[1:]) for times in times_of.values()]

    def _steps(self, num_steps):
        start = time.perf_counter()
        for i in range(num_steps):
            self._step(self._sets[i % NUM_SETS], None)[0].numpy()
        return (time.perf_counter() - start) / num_steps * 1e3

    def _steps_ahead(self, num_steps):
        routed = self._route(self._sets[0])
        start = time.perf_counter()
        for i in range(num_steps):
            loss, routed = self._step(routed, self._sets[(i + 1) % NUM_SETS])
            loss.numpy()
        return (time.perf_counter() - start) / num_steps * 1e3


def wait(tensor, milliseconds):
    """`tensor`, some time later."""

    def sleep(value):
        time.sleep(milliseconds / 1e3)
        return value

    @tf.custom_gradient
    def waited(tensor):
        # Not stateful: a function would run it, and what is, one after the other.
        late = tf.numpy_function(sleep, [tensor], tensor.dtype, stateful=False)
        late.set_shape(tensor.shape)
        return late, lambda gradient: gradient

    return waited(tensor)


def measure(args):
    """Measures all cases on one rank of a job."""
    ge.enable_distributed_strategy("collective")
    figures = [Model(case, args).milliseconds(args.steps, args.ahead) for case in CASES]
    write_of_rank(args.measure, figures)


def measure_ranks(num_ranks, args):
    """Returns the slowest rank's figures for each case, with ids exchanged in the step and a step
    ahead."""
    options = ["--batch", args.batch, "--rows", args.rows, "--steps", args.steps]
    options += ["--dense", args.dense, "--wait", args.wait, *(["--ahead"] if args.ahead else [])]
    ranks = run_on_ranks(num_ranks, [sys.argv[0], "cpus", *map(str, options), "--measure"])
    return [[max(times) for times in zip(*of_case)] for of_case in zip(*ranks)]


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys((row[SHAPE], row["alpha"]) for row in rows))
    kinds = list(dict.fromkeys((row["ranks"], row.get("ids", IDS_EXCHANGED[0])) for row in rows))
    height = 0.8 / len(kinds)
    *_, ratio = rows[0]  # the last heading
    figure, axis = plt.subplots(figsize=(9, 0.4 * len(rows) + 1.6))
    for k, kind in enumerate(kinds):
        of_kind = [row for row in rows if (row["ranks"], row.get("ids", IDS_EXCHANGED[0])) == kind]
        at = np.arange(len(cases)) + k * height
        label = f"ranks: {kind[0]}" + (f", ids {kind[1]}" if len(kinds) > 2 else "")
        bars = axis.barh(at, [row["step ms"] for row in of_kind], height, label=label)
        texts = [f" {row['step ms']:.3g} ms, {row[ratio]:.2f} x" for row in of_kind]
        axis.bar_label(bars, texts, fontsize=8)
    labels = [f"{shape}\nalpha {alpha:g}" for shape, alpha in cases]
    axis.set_yticks(np.arange(len(cases)) + 0.4 - height / 2, labels, fontsize=8)
    axis.set_ylim(len(cases) - 0.1, -0.3)
    axis.set_xlim(0, 1.3 * max(row["step ms"] for row in rows))
    axis.set_xlabel(f"ms a step; x: {ratio}")
    axis.legend(fontsize=8)
    axis.set_title(f"Tables over ranks of {about['cores']} cores, {about['cpu']}, {about['date']}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def add_options(parser):
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch", type=int, default=2048, help="samples of all ranks together")
    parser.add_argument("--rows", type=int, default=100_000, help="of each table")
    parser.add_argument("--steps", type=int, default=30, help="in a round")
    parser.add_argument("--dense", type=int, default=0, help=f"layers of {UNITS} units")
    parser.add_argument("--wait", type=float, default=0, help="milliseconds in a step")
    parser.add_argument("--ahead", action="store_true", help="also exchange ids a step ahead")
    parser.add_argument("--measure", help=argparse.SUPPRESS)


def run(options):
    if options.measure:  # one rank of a job
        measure(options)
        return {}, []
    rows, one_process = [], None
    for num_ranks in options.ranks:
        figures = measure_ranks(num_ranks, options)
        one_process = one_process or figures
        for case, steps, (first, *_) in zip(CASES, figures, one_process):
            rows += [
                {
                    SHAPE: f"{NUM_FEATURES} x {options.batch} x {case.hotness}, {case.dim}",
                    "alpha": case.alpha,
                    "ranks": num_ranks,
                    **({"ids": exchanged} if options.ahead else {}),
                    "step ms": round(ms, 2),
                    f"of {options.ranks[0]} rank's": round(ms / first, 2),
                }
                for exchanged, ms in zip(IDS_EXCHANGED, steps)
            ]
    return machine(), rows
