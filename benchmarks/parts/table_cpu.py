"""Tables found by key on a CPU, through TensorFlow, beside TensorFlow Recommenders Addons (TFRA).

Million keys per second: rows of keys that the table has, read into a tensor; and keys with rows
written to a table that starts empty and grows, batch after batch. Medians of reads, and of whole
fillings. Both libraries run in one process, in turn, eagerly and with all threads.

    python benchmarks/bench_table.py cpu [--keys 1000000 5000000] [--dims 8 64] [--batch 131072]
                                         [--grow 100000000]

TFRA is compared where `tensorflow_recommenders_addons` can be imported (0.7.2 is for TensorFlow
2.15.1: pip install tensorflow-recommenders-addons==0.7.2). --grow trains so many keys, dim 8, in a
table that starts empty, without and with a filter, and tells the memory it takes: of a key beside
its row, and of the process.
"""

import gc
import os
import resource
import statistics
import sys
import time

import numpy as np
from kernel_runner import CORE, load_core
from report import machine

FILLINGS, READS = 3, 9


def keys_of(numbers):
    """Different 64-bit keys for different numbers, without a pattern."""
    x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(32)
    return (x * np.uint64(0xD6E8FEB86659FD93)).view(np.int64)


class Ours:
    name = "group_embedding"

    def __init__(self, tf, dim):
        import group_embedding as ge

        option = ge.EmbeddingVariableOption(init_option=ge.InitializerOption(default_value_dim=1))
        self.table = ge.get_embedding_variable(
            f"bench_{dim}_{time.time_ns()}",
            dim,
            initializer=tf.zeros_initializer(),
            ev_option=option,
        )
        self.write, self.read = self.table.insert, self.table.sparse_read

    def size(self):
        return int(self.table.total_count())


class Tfra:
    name = "TFRA"

    def __init__(self, tf, dim):
        import tensorflow_recommenders_addons as tfra

        self.table = tfra.dynamic_embedding.get_variable(
            f"bench_tfra_{dim}_{time.time_ns()}", key_dtype=tf.int64, value_dtype=tf.float32,
            dim=dim, devices=["/CPU:0"], initializer=0.0,
        )  # fmt: skip
        self.write, self.read = self.table.upsert, self.table.lookup

    def size(self):
        return int(self.table.size())


def compare(tf, libraries, num_keys, dim, batch):
    """One row: both libraries' figures and their ratios."""
    rng = np.random.default_rng(1)
    keys = keys_of(rng.permutation(num_keys))
    whole = tf.constant(rng.standard_normal((batch, dim)), tf.float32)
    parts = [keys[begin : begin + batch] for begin in range(0, num_keys, batch)]
    # Cut before the clock starts: a cut is a copy, at times a longer one than the write.
    values = {len(part): whole[: len(part)] for part in parts}
    written = [(tf.constant(part), values[len(part)]) for part in parts]
    row = {"keys": num_keys, "dim": dim}
    writes = {library.name: [] for library in libraries}
    for turn in range(FILLINGS):
        tables = {}
        gc.collect()  # tables of the turn before: their memory, too, is what the system gives next
        for library in libraries if turn % 2 == 0 else libraries[::-1]:
            table = tables[library] = library(tf, dim)
            start = time.perf_counter()
            for part, rows in written:
                table.write(part, rows)
            writes[library.name].append(time.perf_counter() - start)
            assert table.size() == num_keys, (library.name, table.size())
    for name, seconds in writes.items():
        row[f"{name} write"] = num_keys / statistics.median(seconds) / 1e6
    asked = [tf.constant(rng.choice(keys, batch)) for _ in range(READS)]
    times = {library.name: [] for library in libraries}
    for ids in asked:  # in turn, so that what else the machine does hits both
        for library, table in tables.items():
            start = time.perf_counter()
            rows = table.read(ids)  # eager ops of a CPU have run when they return
            times[library.name].append(time.perf_counter() - start)
            assert rows.shape == (batch, dim)
    for name, seconds in times.items():
        row[f"{name} read"] = batch / statistics.median(seconds[1:]) / 1e6
    if len(libraries) == 2:
        for what in ("write", "read"):
            ours, theirs = (row[f"{library.name} {what}"] for library in libraries)
            row[f"ratio {what}"] = ours / theirs
    return {name: round(value, 2) for name, value in row.items()}


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grow(num_keys, batch, admission="all"):
    """Trains keys in a table of dim 8 that starts empty: the core alone, all threads. A filter
    counts each once before."""
    core = load_core(CORE)
    threads = len(os.sched_getaffinity(0))
    options = {"admission": admission, "min_count": 2} if admission != "all" else {}
    table = core.HostTable(
        dim=8, distribution="uniform", a=-0.1, b=0.1, num_threads=threads, **options
    )
    resident = resident_bytes()
    slowest, begin = 0.0, time.perf_counter()
    for first in range(0, num_keys, batch):
        keys = keys_of(np.arange(first, min(first + batch, num_keys)))
        for _ in range(2 if options else 1):
            start = time.perf_counter()
            table.locate(keys, train=True, step=1)
            slowest = max(slowest, time.perf_counter() - start)
        done = first + len(keys)
        if sys.stderr.isatty():
            print(f"\r{done / num_keys:4.0%} of {num_keys:,} keys", end="", file=sys.stderr)
    seconds = time.perf_counter() - begin
    assert table.num_keys == num_keys
    return {
        "filter": admission,
        "keys": num_keys,
        "seconds": round(seconds, 1),
        "million keys/s": round(num_keys / seconds / 1e6, 2),
        "slowest call ms": round(slowest * 1e3, 1),
        "keys a call": batch,
        "GB of the table": round(table.memory_bytes / 1e9, 2),
        "GB of the process": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "bytes a key beside its row": round(table.memory_bytes / num_keys - 32, 1),
        "as the process has them": round((resident_bytes() - resident) / num_keys - 32, 1),
    }


def plot(path, _, rows):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    labels = [f"{row['keys']:,}\ndim {row['dim']}" for row in rows]
    for axis, what in zip(axes, ("read", "write")):
        names = [name for name in (Ours.name, Tfra.name) if f"{name} {what}" in rows[0]]
        for i, name in enumerate(names):
            at = np.arange(len(rows)) + 0.4 * i
            axis.bar(at, [row[f"{name} {what}"] for row in rows], width=0.4, label=name)
        axis.set(title=what, ylabel="million keys/s")
        axis.set_xticks(np.arange(len(rows)) + 0.2, labels, fontsize=8)
    axes[0].legend()
    figure.savefig(path, dpi=120)


def add_options(parser):
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--dims", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--batch", type=int, default=131072)
    parser.add_argument("--grow", type=int, default=0)


def run(options):
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    filters = ("all", "counter") if options.grow else ()
    grown = [grow(options.grow, options.batch, admission) for admission in filters]
    import tensorflow as tf

    try:
        import tensorflow_recommenders_addons  # noqa: F401

        libraries = [Ours, Tfra]
    except ImportError:
        print("tensorflow_recommenders_addons is not installed: nothing to compare with")
        libraries = [Ours]
    rows = []
    for num_keys in options.keys:
        for dim in options.dims:
            rows.append(compare(tf, libraries, num_keys, dim, options.batch))
            print(rows[-1], flush=True)
    for row in grown:
        print(row)
    about = machine() | {"tensorflow": tf.__version__, "keys a call": options.batch}
    return about | {"growth": grown}, rows
