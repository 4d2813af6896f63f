"""Keys located in a table in host memory that has them all, by several builds in turns.

The core alone: each build has a process. When its turn comes it locates eight batches, to read
them or to train them: uniform keys, or Zipf's of exponent 1.05. Milliseconds of the process for a
batch, on all its threads, as medians over all turns; ratios to the first build with 95% of what 300
resamples of the turns give.

    python benchmarks/bench_table.py find --builds FOLDER FOLDER [--keys 1000000] [--batch 131072]
                                          [--threads 1 2] [--turns 40]

Folders are tests/support of built checkouts.
"""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kernel_runner import CORE, load_core
from parts.table_cpu import keys_of
from report import machine

BATCHES = 8


def add_options(parser):
    parser.add_argument("--builds", nargs="+", default=[str(CORE)])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=131072)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=40)


def run(options):
    rows = [row for threads in options.threads for row in compare(threads, options)]
    return {"benchmark": "bench_table find", **vars(options), **machine()}, rows


def compare(threads, options):
    workers = [start(build, threads, options) for build in options.builds]
    for access in ("read", "train"):
        for ids in ("uniform", "zipf"):
            times = np.zeros([len(workers), options.turns, BATCHES])
            for turn in range(options.turns):
                order = range(len(workers))
                for of in order if turn % 2 else reversed(order):
                    workers[of].stdin.write(f"{ids} {access}\n")
                    workers[of].stdin.flush()
                    times[of, turn] = np.array(workers[of].stdout.readline().split(), float)
            for build, of_build in zip(options.builds, times):
                ratios = resampled(times[0], of_build)
                yield {
                    "keys": options.keys, "threads": threads, "access": access, "ids": ids,
                    "build": build, "ms": round(float(np.median(of_build)), 3),
                    "ratio": round(float(np.median(of_build) / np.median(times[0])), 3),
                    "from": round(float(ratios[0]), 3), "to": round(float(ratios[1]), 3),
                }  # fmt: skip
    for worker in workers:
        worker.stdin.close()
        worker.wait()


def start(build, threads, options):
    worker = subprocess.Popen(
        [sys.executable, __file__, build, *map(str, (options.keys, options.batch, threads))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if worker.stdout.readline() != "ready\n":
        raise SystemExit(f"{build}: its process ended")
    return worker


def resampled(before, after, count=300):
    """The ratio of medians that 2.5% and 97.5% of resamples of turns are below."""
    random = np.random.default_rng(0)
    turns = [random.integers(0, len(before), len(before)) for _ in range(count)]
    ratios = [np.median(after[turn]) / np.median(before[turn]) for turn in turns]
    return np.percentile(ratios, [2.5, 97.5])


def work(build, num_keys, batch, threads):
    """The process of a build: locates what each line of the input says."""
    table = load_core(build).HostTable(dim=8, num_threads=threads)
    for begin in range(0, num_keys, batch):
        numbers = np.arange(begin, min(num_keys, begin + batch))
        table.locate(keys_of(numbers), train=True, step=1)
    random = np.random.default_rng(1)
    weights = np.cumsum(np.arange(1, num_keys + 1) ** -1.05)
    places = random.permutation(num_keys)
    drawn = {
        "uniform": random.integers(0, num_keys, [BATCHES, batch]),
        "zipf": places[np.searchsorted(weights, weights[-1] * random.random([BATCHES, batch]))],
    }
    print("ready", flush=True)
    for line in sys.stdin:
        ids, access = line.split()
        times = []
        for numbers in drawn[ids]:
            keys = keys_of(numbers)
            begin = time.process_time()
            table.locate(keys, train=access == "train", step=2)
            times.append(1e3 * (time.process_time() - begin))
        print(*times, flush=True)


if __name__ == "__main__":
    work(sys.argv[1], *map(int, sys.argv[2:5]))
