"""Two ranks that share a CPU, and a key that is in a large part of a batch: the work of the rank
that has its row, and of the other one.

A step looks up 4 tables of dim 32, 2,048 samples of 5 ids a rank, and trains them by Adagrad. Of
the ids, the given share is one key of the first rank, the rest uniform over 200,000 rows. Tables
are of keys (`keys`), of row numbers (`rows`), or of row numbers whose owners send sums of a
sample's rows (`sums`). Milliseconds are of CPU, in all threads of a rank, a step: medians of blocks
of steps, which all cases take in turn.

    python benchmarks/bench_ranks.py hot [--shares 0 0.1 0.5 0.9] [--steps 10] [--rounds 7]
"""

import argparse
import statistics
import sys
import time

import numpy as np
import tensorflow as tf
from report import machine
from tensorflow_ranks import run_on_ranks, write_of_rank

import group_embedding as ge

NUM_TABLES, DIM, NUM_ROWS, BATCH_SIZE, HOTNESS = 4, 32, 200_000, 2048, 5
KINDS = {"keys": None, "rows": "distributed", "sums": "distributed:sums"}  # their placement
SHARES = (0.0, 0.1, 0.5, 0.9)
NUM_SETS = 4


def make_step(kind):
    rows = None if kind == "keys" else NUM_ROWS
    tables = [
        ge.TableConfig(f"{kind}_{t}", rows, DIM, placement=KINDS[kind]) for t in range(NUM_TABLES)
    ]
    layer = ge.layers.GroupEmbedding(
        [ge.FeatureConfig(str(t), table, "sum") for t, table in enumerate(tables)], concat=True
    )
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))

    @tf.function(reduce_retracing=True)
    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(batch)))
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return layer, step


def hot_ids(layer):
    """For each table an id whose row the first rank has."""
    ids = tf.range(64, dtype=tf.int64)
    tables = [layer.tables[name] for name in layer.tables]
    return [int(ids[list(ge.owner_of(table, ids)).index(0)]) for table in tables]


def draw_sets(generator, share, hot):
    """Batches of a rank: dicts of ids by feature."""
    sets = []
    for _ in range(NUM_SETS):
        batch = {}
        for t, of_table in enumerate(hot):
            ids = generator.integers(64, NUM_ROWS, (BATCH_SIZE, HOTNESS))
            ids[generator.random(ids.shape) < share] = of_table
            batch[str(t)] = tf.constant(ids)
        sets.append(batch)
    return sets


def measure(options):
    """CPU milliseconds a step of each case on this rank."""
    ge.enable_distributed_strategy("collective")
    generator = np.random.default_rng(ge.exchange.current().rank)
    cases = []
    for kind in KINDS:
        layer, step = make_step(kind)
        step(draw_sets(generator, 0, [0] * NUM_TABLES)[0])
        hot = hot_ids(layer)
        cases += [(step, draw_sets(generator, share, hot), []) for share in options.shares]
    for _ in range(options.rounds + 1):
        for step, sets, times in cases:
            begin = time.process_time()
            for i in range(options.steps):
                step(sets[i % NUM_SETS]).numpy()
            times.append((time.process_time() - begin) / options.steps * 1e3)
    write_of_rank(options.measure, [statistics.median(times[1:]) for *_, times in cases])


def add_options(parser):
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--steps", type=int, default=10, help="in a block")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--measure", help=argparse.SUPPRESS)


def run(options):
    if options.measure:  # one rank of a job
        measure(options)
        return {}, []
    given = ["--shares", *options.shares, "--steps", options.steps, "--rounds", options.rounds]
    owner, other = run_on_ranks(2, [sys.argv[0], "hot", *map(str, given), "--measure"])
    cases = [(kind, share) for kind in KINDS for share in options.shares]
    rows = [
        {
            "tables": kind,
            "share of one key": share,
            "its owner, ms": round(of_owner, 2),
            "other rank, ms": round(of_other, 2),
            "owner / other": round(of_owner / of_other, 2),
        }
        for (kind, share), of_owner, of_other in zip(cases, owner, other)
    ]
    return machine(), rows
