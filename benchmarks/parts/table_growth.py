"""How long growth stops training, of a table in host memory that starts empty: the core alone.

A call trains keys that are new to the table, which grows for them. Then the same keys are erased
and trained again: now their rows and their places in the index are there. What the first call takes
above the second is the stop. Milliseconds of one thread, by its own clock, which counts the memory
that the system makes for it and not other programs of the machine, and by the wall's.

    python benchmarks/bench_table.py growth [--keys 8000000 70000000] [--batch 131072] [--dim 8]
                                            [--calls 60] [--pause 60] [--builds FOLDER FOLDER]

Calls are measured while the table grows from half of --keys to these, --calls of them evenly
spread; --pause milliseconds are between two calls, as of the rest of a step. With --builds, folders
of several builds (tests/support of their checkouts), each has a process of its own, by turns.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kernel_runner import CORE, load_core
from parts.table_cpu import keys_of
from report import machine


def add_options(parser):
    parser.add_argument("--keys", type=int, nargs="+", default=[8_000_000])
    parser.add_argument("--batch", type=int, default=131072)
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--pause", type=float, nargs="+", default=[60.0], help="milliseconds")
    parser.add_argument("--builds", nargs="+", default=[str(CORE)])


def run(options):
    rows = []
    for num_keys in options.keys:
        for pause in options.pause:
            for build in options.builds:
                how = [build, num_keys, options.batch, options.dim, options.calls, pause]
                done = subprocess.run(
                    [sys.executable, __file__, *map(str, how)], stdout=subprocess.PIPE, check=True
                )
                rows += [{"build": build, **row} for row in json.loads(done.stdout)]
    return {"benchmark": "bench_table growth", **vars(options), **machine()}, rows


def grow(core, num_keys, batch, dim, num_calls, pause):
    """The process of a build: rows of one table, one for each clock."""
    table = load_core(core).HostTable(dim=dim, distribution="uniform", a=-0.1, b=0.1)
    num_batches = num_keys // batch
    measured = set(np.linspace(num_batches // 2, num_batches - 1, num_calls).astype(int).tolist())
    growing, again = [], []
    for number in range(num_batches):
        keys = keys_of(np.arange(number * batch, (number + 1) * batch))
        time.sleep(pause / 1e3)
        first = train(table, keys)
        if number not in measured:
            continue
        growing.append(first)
        # In the order of their rows, in which these are given again.
        table.erase(keys[np.argsort(table.find(keys))])
        again.append(train(table, keys))
    growing, again = np.array(growing), np.array(again)
    for clock, name in enumerate(("thread", "wall")):
        row = {"keys": num_batches * batch, "calls": len(growing), "pause": pause, "clock": name}
        row["new keys"] = np.median(growing[:, clock])
        row["again"] = np.median(again[:, clock])
        stop = (growing - again)[:, clock]
        row["stop, median"], row["p99"] = np.percentile(stop, [50, 99])
        row["largest"] = stop.max()
        yield {k: round(float(v), 2) if isinstance(v, np.floating) else v for k, v in row.items()}


def train(table, keys):
    """Milliseconds of the thread and of the wall's clock."""
    begin, begin_wall = time.thread_time(), time.perf_counter()
    table.locate(keys, train=True, step=1)
    return 1e3 * (time.thread_time() - begin), 1e3 * (time.perf_counter() - begin_wall)


if __name__ == "__main__":
    print(json.dumps(list(grow(sys.argv[1], *map(int, sys.argv[2:6]), float(sys.argv[6])))))
