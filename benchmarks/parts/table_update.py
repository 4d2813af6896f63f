"""Updates with slots in float32 and in bfloat16, on one thread of a CPU: the core alone.

Each build has a process, in which the same rows, each looked up once, are updated with slots of
each type by turns: float32; bfloat16 rounded to nearest; bfloat16 rounded at random. A table of
--rows is in memory, one of --few-rows in the processor's cache. Milliseconds of the process for an
update, as medians over all turns; ratios to float32 slots of the same build with 95% of what 300
resamples of the turns give.

    python benchmarks/bench_table.py update [--builds FOLDER FOLDER] [--rules adam adagrad]
                                            [--dims 16 64] [--rows 1000000] [--few-rows 8192]
                                            [--batch 65536] [--turns 40]

Folders are tests/support of built checkouts.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kernel_runner import CORE, load_core
from parts.table_find import resampled
from report import machine

RULES = ["adam", "rowwise_adam", "adagrad", "rowwise_adagrad"]
SLOTS = {  # {name: arguments of an update}
    "float32": {"slot_dtype": "float32"},
    "nearest": {"slot_dtype": "bfloat16"},
    "bfloat16": {"slot_dtype": "bfloat16", "stochastic_slots": True},
}
HYPER = {
    "apply": 1, "gradient_scale": 1, "clip_value": np.inf, "learning_rate": 0.01, "beta_1": 0.9,
    "beta_2": 0.999, "beta_1_power": 0.5, "beta_2_power": 0.9, "epsilon": 1e-7,
}  # fmt: skip


def add_options(parser):
    parser.add_argument("--builds", nargs="+", default=[str(CORE)])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--few-rows", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=65536)
    parser.add_argument("--turns", type=int, default=40)


def run(options):
    rows = []
    for rule in options.rules:
        for dim in options.dims:
            for num_rows in (options.few_rows, options.rows):
                rows += compare(rule, dim, num_rows, options)
    return {"benchmark": "bench_table update", **vars(options), **machine()}, rows


def compare(rule, dim, num_rows, options):
    workers = [start(build, rule, dim, num_rows, options) for build in options.builds]
    times = [{slots: [] for slots in SLOTS} for _ in workers]
    for turn in range(options.turns):
        order = range(len(workers))
        for of in order if turn % 2 else reversed(order):
            workers[of].stdin.write("turn\n")
            workers[of].stdin.flush()
            for slots, measured in json.loads(workers[of].stdout.readline()).items():
                times[of][slots].append(measured)
    for worker in workers:
        worker.stdin.close()
        worker.wait()
    for build, of_build in zip(options.builds, times):
        wide = np.array(of_build["float32"])
        for slots, measured in of_build.items():
            low, high = resampled(wide, np.array(measured))
            yield {
                "rule": rule, "dim": dim, "rows": num_rows, "build": build, "slots": slots,
                "ms": round(float(np.median(measured)), 3),
                "ratio": round(float(np.median(measured) / np.median(wide)), 3),
                "from": round(float(low), 3), "to": round(float(high), 3),
            }  # fmt: skip


def start(build, rule, dim, num_rows, options):
    sizes = map(str, (dim, num_rows, options.batch))
    worker = subprocess.Popen(
        [sys.executable, __file__, build, rule, *sizes],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if worker.stdout.readline() != "ready\n":
        raise SystemExit(f"{build}: its process ended")
    return worker


def work(build, rule, dim, num_rows, batch):
    """The process of a build: for each line of the input an update with each type of slots."""
    core = load_core(build)
    random = np.random.default_rng(1)
    ids = random.permutation(num_rows)[:batch]
    gradients = random.normal(size=(len(ids), dim)).astype(np.float32)
    table = random.normal(size=(num_rows, dim)).astype(np.float32)
    group = core.Group(
        tables=[table], outputs=[gradients], ids=ids, row_splits=None, table_of_feature=[0],
        combiners=["sum"], max_norms=[0],
    )  # fmt: skip
    updates = {slots: make(core, group, rule, table, how) for slots, how in SLOTS.items()}
    for update in updates.values():
        update.run()
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        order = list(updates)
        times = {}
        for slots in order if number % 2 else reversed(order):
            begin = time.process_time()
            updates[slots].run()
            times[slots] = 1e3 * (time.process_time() - begin)
        print(json.dumps(times), flush=True)


def make(core, group, rule, table, how):
    num_slots, row_slot = core.rules[rule]
    hyper = np.array([HYPER.get(name, 0) for name in core.hyper_names], np.float32)
    dtype = np.float32 if how["slot_dtype"] == "float32" else np.uint16
    slots = [np.zeros(table.shape[:1] if k == row_slot else table.shape, dtype)
             for k in range(num_slots)]  # fmt: skip
    if rule == "adam":
        slots[2] = None  # a maximum, of AMSGrad
    return core.Update(group, rule=rule, slots=[slots], hyper=hyper, **how)


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
