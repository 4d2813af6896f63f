#!/usr/bin/env python3
"""Tables spread over processes of one CPU, through TensorFlow: one process with all its cores
against ranks that share them, on the same batch.

A step is forward, backward and update of 26 tables of a `ge.layers.GroupEmbedding`, by a wrapped
Adagrad; each rank has its part of the batch. Milliseconds are a step's, the slowest rank's, the
median of rounds of steps in a row.

    python benchmarks/bench_collective_cpu.py [--ranks 1 2] [--batch 2048] [--json FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from report import machine, print_table, write_json
from workloads import ALPHAS, ids_from_uniform

NUM_FEATURES, NUM_SETS, ROUNDS = 26, 4, 7


@dataclass(frozen=True)
class Case:
    """26 features of one table each, ids uniform (alpha 0) or by Zipf's law."""

    hotness: int
    dim: int
    alpha: float


CASES = [Case(hotness, dim, alpha) for hotness, dim in [(1, 128), (5, 16)] for alpha in ALPHAS]


class Model:
    """Its step takes this rank's part of one of a few batches."""

    def __init__(self, case, batch, rows):
        import tensorflow as tf

        import group_embedding as ge

        exchange = ge.exchange.current()
        names = [f"f{i}" for i in range(NUM_FEATURES)]
        layer = ge.layers.GroupEmbedding(
            [ge.FeatureConfig(name, ge.TableConfig(f"{name}_table", rows, case.dim), combiner="sum")
             for name in names],
            concat=True,
        )  # fmt: skip
        optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
        optimizer = ge.DistributedOptimizer(optimizer)
        rng = np.random.default_rng(0)
        shape = (NUM_SETS, batch, NUM_FEATURES, case.hotness)
        ids = ids_from_uniform(rng.random(shape), rows, case.alpha, lambda x: x.astype(np.int64))
        mine = ids[:, exchange.rank :: exchange.num_ranks]
        self._sets = [
            {name: tf.constant(ids[:, f]) for f, name in enumerate(names)} for ids in mine
        ]

        @tf.function
        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(layer(ids) ** 2)
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        self._step = step

    def milliseconds(self, num_steps):
        times = []
        for _ in range(ROUNDS + 1):
            start = time.perf_counter()
            for i in range(num_steps):
                self._step(self._sets[i % NUM_SETS]).numpy()
            times.append((time.perf_counter() - start) / num_steps * 1e3)
        return statistics.median(times[1:])


def measure(args):
    """One rank of a job: writes what it measured of each case to a file of its own."""
    import group_embedding as ge

    ge.enable_distributed_strategy("collective")
    figures = [Model(case, args.batch, args.rows).milliseconds(args.steps) for case in CASES]
    rank = ge.exchange.current().rank
    (Path(args.measure) / str(rank)).write_text(json.dumps(figures))


def run(num_ranks, args):
    """What the slowest rank measured of each case."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--measure", folder, "--batch", str(args.batch)]
        command += ["--rows", str(args.rows), "--steps", str(args.steps)]
        if num_ranks > 1:
            horovodrun = Path(sys.executable).with_name("horovodrun")
            command = [str(horovodrun), "-np", str(num_ranks), *command]
        subprocess.run(command, check=True)
        ranks = [json.loads(file.read_text()) for file in Path(folder).iterdir()]
    assert len(ranks) == num_ranks
    return [max(of_case) for of_case in zip(*ranks)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch", type=int, default=2048, help="samples of all ranks together")
    parser.add_argument("--rows", type=int, default=100_000, help="of each table")
    parser.add_argument("--steps", type=int, default=30, help="in a round")
    parser.add_argument("--json")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args)
        return
    rows, one_process = [], None
    for num_ranks in args.ranks:
        figures = run(num_ranks, args)
        one_process = one_process or figures
        rows += [
            {
                "features x batch x ids, dim": f"{NUM_FEATURES} x {args.batch} x {case.hotness}, "
                f"{case.dim}",
                "alpha": case.alpha,
                "ranks": num_ranks,
                "step ms": round(ms, 2),
                f"of {args.ranks[0]} rank's": round(ms / first, 2),
            }
            for case, ms, first in zip(CASES, figures, one_process)
        ]
    print_table(rows)
    if args.json:
        write_json(args.json, machine(), rows)


if __name__ == "__main__":
    main()
