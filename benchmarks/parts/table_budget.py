"""A table of keys with a budget on a CPU: the cost of eviction, and memory over a long stream.

Steps: two tables, one without a budget, are trained by the same batches in turns: a lookup, its
gradient and Adagrad. A share of each batch is new, the others are Zipf's. Times in
milliseconds, and their ratio.

Stream: keys that come once, so many in all, through one table with a budget; its keys and the
process's memory after each hundredth of them.

    python benchmarks/bench_table.py budget [--keys 1000000] [--batch 65536] [--dim 16]
                                            [--new 0.05] [--steps 300] [--stream 100000000]
                                            [--evict least_recent least_frequent]
"""

import os
import time

import numpy as np
from parts.table_cpu import keys_of
from report import machine


class Batches:
    """Zipf's numbers below `num_known`, and new ones."""

    def __init__(self, num_known, batch, new, exponent=1.05):
        self.random = np.random.default_rng(1)
        weights = np.arange(1, num_known + 1) ** -exponent
        self.cumulative = np.cumsum(weights) / weights.sum()
        self.num_new, self.batch, self.next_new = int(new * batch), batch, num_known

    def __next__(self):
        drawn = self.random.random(self.batch - self.num_new)
        known = np.searchsorted(self.cumulative, drawn)
        new = np.arange(self.next_new, self.next_new + self.num_new)
        self.next_new += self.num_new
        return keys_of(np.concatenate([known, new]))


class Trained:
    def __init__(self, tf, ge, name, dim, **options):
        self.tf, self.ge = tf, ge
        self.table = ge.keyed_table(
            name, dim, initializer=tf.zeros_initializer(), num_initial_rows=1, **options
        )
        self.optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))

    def step(self, keys):
        tf = self.tf
        begin = time.perf_counter()
        with tf.GradientTape() as tape:
            (rows,) = self.ge.lookup([self.table], [keys])
            loss = tf.reduce_sum(rows)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.table), self.table)])
        return time.perf_counter() - begin


def compare(tf, ge, args, evict):
    """One row: both tables' steps."""
    limited = Trained(
        tf, ge, f"limited_{evict}", args.dim, max_keys=args.keys, budget_of="rank", evict=evict
    )
    free = Trained(tf, ge, f"free_{evict}", args.dim)
    fill = np.arange(args.keys)
    for begin in range(0, args.keys, args.batch):
        for table in (limited, free):
            table.step(tf.constant(keys_of(fill[begin : begin + args.batch])))
    batches = Batches(args.keys, args.batch, args.new)
    times = {limited: [], free: []}
    for step in range(args.steps):
        keys = tf.constant(next(batches))
        for table in (limited, free) if step % 2 else (free, limited):
            times[table].append(1000 * table.step(keys))
    counts = limited.table.budget_counts()
    row = {"evict": evict, "keys": int(limited.table.total_count()), "evicted": int(counts.evicted)}
    for name, percentile in (("median", 50), ("p99", 99)):
        with_budget, without = (np.percentile(times[t], percentile) for t in (limited, free))
        row[f"{name} ms"] = float(with_budget)
        row[f"{name} ms without"] = float(without)
        row[f"{name} ratio"] = float(with_budget / without)
    row["mean ratio"] = float(np.mean(times[limited]) / np.mean(times[free]))
    return row


def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def stream(tf, ge, args):
    """{keys that came, keys in the table, megabytes} after each hundredth."""
    trained = Trained(tf, ge, "stream", args.dim, max_keys=args.keys, budget_of="rank")
    points, begin = [], time.perf_counter()
    num_steps = max(1, args.stream // args.batch)
    for step in range(num_steps):
        numbers = np.arange(step * args.batch, (step + 1) * args.batch)
        trained.step(tf.constant(keys_of(numbers)))
        if (step + 1) % max(1, num_steps // 100) == 0:
            points.append(
                {
                    "stream": (step + 1) * args.batch,
                    "keys": int(trained.table.total_count()),
                    "resident MB": resident_mb(),
                    "seconds": time.perf_counter() - begin,
                }
            )
    return points


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    points = [row for row in rows if "stream" in row]
    figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
    came = [point["stream"] / 1e6 for point in points]
    axis.plot(came, [point["resident MB"] for point in points], label="process, MB")
    axis.set(xlabel="million keys that came", ylabel="resident memory, MB", ylim=(0, None))
    other = axis.twinx()
    other.plot(came, [point["keys"] / 1e6 for point in points], "C1", label="keys in the table")
    other.set(ylabel="million keys in the table", ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=2)
    figure.savefig(path, dpi=120)


def add_options(parser):
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=65536)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--new", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--evict", nargs="*", default=["least_recent", "least_frequent"])
    parser.add_argument("--stream", type=int, default=0)


def run(options):
    import tensorflow as tf

    import group_embedding as ge

    rows = [compare(tf, ge, options, evict) for evict in options.evict]
    if options.stream:
        rows += stream(tf, ge, options)
    return {"benchmark": "bench_table budget", **vars(options), **machine()}, rows
