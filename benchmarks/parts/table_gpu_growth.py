"""Memory of a table in GPU memory that starts empty and grows: the core alone.

A call trains keys that are new. After each, the table says its bytes, and the GPU's driver those
that are taken since the table was made: with rows ahead, and with memory of the next index, which
is made before keys move there. The numbers are of calls after the first quarter of the keys:

own, outside: bytes of a key beside its row, as the table and as the driver says: mean, least, most.
growth: the most bytes of the table, relative to its keys at the least bytes of a key among the
calls before, from three quarters of these keys on.
ms: of all calls, and of one call with a wait: median, 99th percentile, largest.

    python benchmarks/bench_table.py gpu_growth [--keys 40000000] [--batch 524288 65536]
                                                [--dims 8 16 64] [--core FOLDER]
"""

import ctypes
import time

import numpy as np
from kernel_runner import add_core, load_core
from parts.table_cpu import keys_of
from report import machine

FLOAT_BYTES = 4
FIRST = 4_000_000  # keys of a table that is not measured, so that kernels are loaded


def add_options(parser):
    add_core(parser)
    parser.add_argument("--keys", type=int, default=40_000_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[1 << 19, 1 << 16])
    parser.add_argument("--dims", type=int, nargs="+", default=[8, 16, 64])


def run(options):
    core = load_core(options.core)
    grow(core, min(FIRST, options.keys), options.batch[0], options.dims[0])
    rows = []
    for dim in options.dims:
        for batch in options.batch:
            rows.append(row_of(dim, batch, *grow(core, options.keys, batch, dim)))
            print(rows[-1], flush=True)
    return {"benchmark": "bench_table gpu_growth", **machine()}, rows


def grow(core, num_keys, batch, dim):
    """(keys, bytes by the table, bytes by the driver, milliseconds) after each call, [calls]"""
    rows = core.DeviceArray(np.zeros(batch, np.int64))
    keys = core.DeviceArray(np.arange(batch))
    table = core.DeviceTable(dim=dim, matrix=np.zeros((1, dim), np.float32))
    before, found = taken_bytes(), []
    for step, first in enumerate(range(0, num_keys, batch)):
        keys = core.DeviceArray(keys_of(np.arange(first, first + batch)))
        begin = time.perf_counter()
        located = table.begin_batch()
        table.locate(keys, rows, train=True, step=step, batch=located)
        table.end_batch(located)
        count = table.num_keys  # waits
        ms = 1e3 * (time.perf_counter() - begin)
        found.append((count, table.memory_bytes, taken_bytes() - before, ms))
    return np.array(found, np.float64).T


def taken_bytes():
    """Bytes of the GPU that are taken, as its driver says."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return total.value - free.value


def row_of(dim, batch, keys, own, outside, ms):
    calls = np.nonzero(keys > keys[-1] / 4)[0]
    row = {"dim": dim, "batch": batch, "keys": int(keys[-1])}
    for name, size in (("own", own), ("outside", outside)):
        beside = (size / keys)[calls] - dim * FLOAT_BYTES
        row |= {
            name: round(beside.mean(), 1),
            f"{name}, least": round(beside.min(), 1),
            f"{name}, most": round(beside.max(), 1),
            f"growth, {name}": round(max(growth_at(call, keys, size) for call in calls), 3),
        }
    median, p99 = np.percentile(ms, [50, 99])
    times = {"ms of all": ms.sum(), "median": median, "p99": p99, "largest": ms.max()}
    return row | {name: round(float(value), 2) for name, value in times.items()}


def growth_at(call, keys, size):
    before = (keys >= 0.75 * keys[call]) & (keys <= keys[call])
    return size[call] / (size[before] / keys[before]).min() / keys[call]
