"""Steps of a keyed table on a CPU, of two built checkouts by turns: what a change costs.

Each checkout has a process, which trains or reads a table when its turn comes: a lookup, and in
training its gradient and Adagrad; ids are Zipf's. Milliseconds of the wall's clock and of the
process's, as medians over all steps; ratios with 95% of what 500 resamples of the turns give.

    python benchmarks/bench_step.py checkouts BEFORE [AFTER] [--keys 900000] [--batch 65536]
                                              [--dim 16] [--turns 300] [--steps 8]
"""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def add_options(parser):
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default=str(ROOT))
    for name, default in (("keys", 900_000), ("batch", 65536), ("dim", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--steps", type=int, default=8, help="of a turn")


def run(options):
    from report import machine

    rows = [row for mode in ("train", "read") for row in compare(mode, options)]
    return {"benchmark": "bench_step checkouts", **vars(options), **machine()}, rows


def compare(mode, options):
    workers = [start(mode, checkout, options) for checkout in (options.before, options.after)]
    times = np.zeros([2, options.turns, options.steps, 2])
    for turn in range(options.turns):
        for of in (0, 1) if turn % 2 else (1, 0):
            workers[of].stdin.write(f"{options.steps}\n")
            workers[of].stdin.flush()
            found = np.array(workers[of].stdout.readline().split(), float)
            times[of, turn] = 1e3 * found.reshape(options.steps, 2)
    for worker in workers:
        worker.stdin.close()
        worker.wait()
    for clock, name in enumerate(("wall", "process")):
        before, after = times[..., clock]
        ratios = resampled(before, after)
        yield {
            "step": mode,
            "clock": name,
            "before ms": round(float(np.median(before)), 3),
            "after ms": round(float(np.median(after)), 3),
            "ratio": round(float(np.median(after) / np.median(before)), 4),
            "from": round(float(ratios[0]), 4),
            "to": round(float(ratios[1]), 4),
        }


def start(mode, checkout, options):
    sizes = [str(getattr(options, name)) for name in ("keys", "batch", "dim")]
    worker = subprocess.Popen(
        [sys.executable, __file__, checkout, mode, *sizes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if worker.stdout.readline() != "ready\n":
        raise SystemExit(f"{checkout}: its process ended")
    return worker


def resampled(before, after, count=500):
    """The ratio of medians that 2.5% and 97.5% of resamples of turns are below."""
    random = np.random.default_rng(0)
    turns = [random.integers(0, len(before), len(before)) for _ in range(count)]
    ratios = [np.median(after[turn]) / np.median(before[turn]) for turn in turns]
    return np.percentile(ratios, [2.5, 97.5])


def work(checkout, mode, keys, batch, dim):
    """Runs as many steps as each line of the input says, and prints their times."""
    sys.path.insert(0, checkout)
    import tensorflow as tf

    import group_embedding as ge

    table = ge.keyed_table("keys", dim)
    for some in np.array_split(np.arange(keys), 10):
        table.insert(some, np.zeros([len(some), dim], np.float32))
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))

    @tf.function
    def read(ids):
        return tf.reduce_sum(ge.group_embedding_lookup([table], [ids])[0])

    @tf.function
    def train(ids):
        with tf.GradientTape() as tape:
            loss = read(ids)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    step, random = {"read": read, "train": train}[mode], np.random.default_rng(1)
    batches = [tf.constant(np.minimum(random.zipf(1.05, batch), keys - 1)) for _ in range(8)]
    for ids in batches:
        step(ids)
    print("ready", flush=True)
    for line in sys.stdin:
        times = []
        for i in range(int(line)):
            wall, process = time.perf_counter(), time.process_time()
            step(batches[i % len(batches)])
            times += [time.perf_counter() - wall, time.process_time() - process]
        print(*times, flush=True)


if __name__ == "__main__":  # the process of a checkout
    work(*sys.argv[1:3], *map(int, sys.argv[3:]))
