"""Tables found by key on a GPU: find and find-or-insert, beside NVIDIA HierarchicalKV.

Billions of keys per second, of 1,048,576 different keys a call, 60% of which the table has: what
HierarchicalKV's own benchmark measures. `load` is of the 64 Mi keys that both tables have space
for. Both with the rows copied out, and without: ours then returns row numbers, HierarchicalKV
addresses. Keys that a call inserted are erased again, so that the load rises by 0.05 at most.
Medians; by CUDA events, with the host's time hidden behind a spin of the GPU, and by the wall clock
around a call and a wait. Values and keys found are compared before anything is timed.

    python benchmarks/bench_table.py gpu [--hkv libhierarchicalkv.so] [--dims 8 32 64]
                                         [--loads 0.5 1] [--capacity 67108864]
                                         [--grow 1000000000] [--tiers 16777216]

peers/hierarchicalkv.cu says how to build the library. --grow inserts so many keys, dim 8, into a
table that starts empty. --tiers makes a table of so many keys, a tenth of them in GPU memory and
the rest in the host's (table_tiers.py).
"""

import ctypes
import statistics
import time
from types import SimpleNamespace

import numpy as np
from kernel_runner import add_core, start_on_gpu
from parts import table_tiers

BATCH = 1 << 20
HIT_RATE = 0.6
MATRIX_ROWS = 4096
WARM_UP, REPEATS = 1, 7
CALLS = WARM_UP + REPEATS


def keys_of(numbers):
    """Different 64-bit keys for different numbers: a bijection that leaves no pattern."""
    x = numbers * -7046029254386353131
    x = x ^ ((x >> 32) & 0xFFFFFFFF)
    x = x * -4658895280553007687
    return x ^ ((x >> 29) & 0x7FFFFFFFF)


class Ours:
    name = "ours"

    def __init__(self, core, device, dim, matrix, num_keys, **options):
        self.core, self.device, self.step = core, device, 0
        self.table = core.DeviceTable(dim=dim, matrix=device.host(matrix), **options)
        self.table.reserve(num_keys)
        self.rows = device.empty((BATCH,), "int64")
        self.values = device.empty((BATCH, dim), "float32")
        view = SimpleNamespace(__cuda_array_interface__=self.table.interface())
        self.lookup = core.Group(
            tables=[view], outputs=[self.values], ids=self.rows, row_splits=None,
            table_of_feature=[0], combiners=["sum"], max_norms=[0.0], allocate=device.allocate
        ).lookup  # fmt: skip

    def fill(self, keys):
        self.find_or_insert_rows(keys)

    def find_rows(self, keys):
        self.table.locate(keys, self.rows[: len(keys)], stream=self.device.stream)

    def find(self, keys):
        self.find_rows(keys)
        self.lookup(self.device.stream)

    def find_or_insert_rows(self, keys):
        self.step += 1
        rows, stream = self.rows[: len(keys)], self.device.stream
        self.table.locate(keys, rows, train=True, step=self.step, stream=stream)

    def find_or_insert(self, keys):
        self.find_or_insert_rows(keys)
        self.lookup(self.device.stream)

    def prepare(self, keys):
        """Before a call is timed."""

    def undo(self, _, new):
        """After a call that inserted the new ones among its keys."""
        self.table.erase(self.device.host(new))

    def found(self):
        return self.rows >= self.table.first_row

    def load(self):
        return self.table.load_factor


class HierarchicalKv:
    name = "HierarchicalKV"

    def __init__(self, library, device, dim, matrix, capacity):
        self.hkv, self.device, self.matrix = library, device, matrix
        gigabytes = capacity * dim * 4 // 2**30 + 1
        library.hkv_create.restype = ctypes.c_void_p
        library.hkv_size.restype = ctypes.c_int64
        self.table = ctypes.c_void_p(
            library.hkv_create(*map(ctypes.c_int64, (capacity, dim, gigabytes)))
        )
        self.capacity = capacity
        self.values = device.empty((BATCH, dim), "float32")
        self.addresses = device.empty((BATCH,), "int64")
        self.flags = device.empty((BATCH,), "bool")

    def __del__(self):
        self.hkv.hkv_destroy(self.table)

    def _call(self, function, keys, *arrays):
        pointers = (ctypes.c_void_p(a.data_ptr()) for a in (keys, *arrays))
        function(
            self.table, ctypes.c_int64(len(keys)), *pointers, ctypes.c_void_p(self.device.stream)
        )

    def fill(self, keys):
        rows = self.matrix[keys & (MATRIX_ROWS - 1)].contiguous()
        self._call(self.hkv.hkv_assign, keys, rows)

    def find_rows(self, keys):
        self._call(self.hkv.hkv_find_addresses, keys, self.addresses, self.flags)

    def find(self, keys):
        self._call(self.hkv.hkv_find, keys, self.values, self.flags)

    def find_or_insert_rows(self, keys):
        self._call(self.hkv.hkv_find_or_insert_addresses, keys, self.addresses, self.flags)

    def find_or_insert(self, keys):
        self._call(self.hkv.hkv_find_or_insert, keys, self.values)

    def prepare(self, keys):
        """find_or_insert takes from there what new keys start as."""
        self.device.torch.index_select(self.matrix, 0, keys & (MATRIX_ROWS - 1), out=self.values)

    def undo(self, keys, new):
        """Fills the rows of inserted keys: HierarchicalKV gives addresses, and the caller writes
        rows."""
        self.fill(keys)
        self._call(self.hkv.hkv_erase, new)

    def found(self):
        return self.flags

    def load(self):
        return self.hkv.hkv_size(self.table, ctypes.c_void_p(self.device.stream)) / self.capacity


class Filling:
    """Fills both tables to a load, and makes batches of which they have a share."""

    def __init__(self, device, tables, capacity):
        self.device, self.tables, self.capacity = device, tables, capacity
        self.next, self.next_new = 0, 1 << 50

    def fill(self, load):
        """Up to that load. HierarchicalKV throws keys out before it is full: it gets more."""
        while self.next < int(load * self.capacity):
            count = min(BATCH, int(load * self.capacity) - self.next)
            keys = keys_of(self.device.torch.arange(self.next, self.next + count, device="cuda"))
            for table in self.tables:
                table.fill(keys)
            self.next += count
        for table in self.tables[1:]:
            while table.load() < load - 1e-3:
                table.fill(self.new_keys(BATCH))

    def new_keys(self, count):
        numbers = self.device.torch.arange(self.next_new, self.next_new + count, device="cuda")
        self.next_new += count
        return keys_of(numbers)

    def batch(self):
        """(BATCH different keys, those that no table has); all have the same HIT_RATE of them."""
        torch = self.device.torch
        drawn = torch.randint(0, self.next, (2 * BATCH,), device="cuda").unique()
        drawn = keys_of(drawn[torch.randperm(len(drawn), device="cuda")][:BATCH])
        self.tables[-1].find_rows(drawn)
        hits = drawn[self.tables[-1].found()[: len(drawn)]][: int(BATCH * HIT_RATE)]
        new = self.new_keys(BATCH - len(hits))
        keys = torch.cat([hits, new])[torch.randperm(BATCH, device="cuda")]
        return keys.contiguous(), new

    def check(self, matrix):
        """The share of rows found that are right, of each table."""
        keys, _ = self.batch()
        expected = matrix[keys & (MATRIX_ROWS - 1)]
        shares = []
        for table in self.tables:
            table.values.zero_()
            table.find(keys)
            found = table.found()
            assert found.float().mean().item() > HIT_RATE - 0.01, table.name
            right = (table.values[found] == expected[found]).all(1)
            shares.append(right.float().mean().item())
        assert shares[0] == 1, "ours"
        return shares


def measure(device, table, function, batches):
    """(ms by events, ms by the wall clock), medians; half of the batches for either."""

    def by_clock(call):
        device.torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        device.torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    medians = []
    for clock, chosen in ((device.milliseconds, batches[:CALLS]), (by_clock, batches[CALLS:])):
        times = []
        for keys, _ in chosen:
            table.prepare(keys)
            times.append(clock(lambda keys=keys: function(keys)))
        if "insert" in function.__name__:
            for keys, new in chosen:
                table.undo(keys, new)
        medians.append(statistics.median(times[WARM_UP:]))
    return medians


def compare(core, device, library, dim, loads, capacity):
    matrix = device.normal((MATRIX_ROWS, dim), "float32")
    tables = [Ours(core, device, dim, matrix, int(1.05 * capacity))]
    if library is not None:
        tables.append(HierarchicalKv(library, device, dim, matrix, capacity))
    filling = Filling(device, tables, capacity)
    rows = []
    for load in loads:
        filling.fill(load)
        shares = filling.check(matrix)
        if min(shares) < 1:
            print(f"dim {dim}, load {load}: rows found that are right: {shares}")
        for what in ("find", "find_rows", "find_or_insert", "find_or_insert_rows"):
            row = {"dim": dim, "load": load, "function": what}
            batches = [filling.batch() for _ in range(2 * CALLS)]
            for table in tables:
                row[f"{table.name} index load"] = round(table.load(), 3)
                events, clock = measure(device, table, getattr(table, what), batches)
                row[table.name] = round(BATCH / events / 1e6, 3)
                row[f"{table.name} by clock"] = round(BATCH / clock / 1e6, 3)
            if library is not None:
                other = tables[1].name
                row["ratio"] = round(row["ours"] / row[other], 3)
                row["ratio by clock"] = round(row["ours by clock"] / row[f"{other} by clock"], 3)
            rows.append(row)
            print(row, flush=True)
    return rows


def grow(core, device, num_keys):
    """Inserts keys into a table that starts empty and grows."""
    matrix = device.host(device.normal((MATRIX_ROWS, 8), "float32"))
    rows = device.empty((BATCH,), "int64")
    torch, times = device.torch, []
    first_keys = keys_of(torch.arange(BATCH, device="cuda"))  # so that kernels are loaded
    core.DeviceTable(dim=8, matrix=matrix).locate(
        first_keys, rows, train=True, stream=device.stream
    )
    table = core.DeviceTable(dim=8, matrix=matrix)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for first in range(0, num_keys, BATCH):
        numbers = torch.arange(first, min(first + BATCH, num_keys), device="cuda")
        start = time.perf_counter()
        table.locate(keys_of(numbers), rows[: len(numbers)], train=True, stream=device.stream)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    seconds = time.perf_counter() - begin
    assert table.num_keys == num_keys
    free, total = torch.cuda.mem_get_info()
    return {
        "keys inserted": num_keys,
        "seconds": round(seconds, 2),
        "million keys/s": round(num_keys / seconds / 1e6, 1),
        "ms per call": round(statistics.median(times), 3),
        "slowest calls ms": [round(t, 1) for t in sorted(times)[-5:]],
        "GB used by the table": round(table.memory_bytes / 1e9, 1),
        "GB taken of the GPU": round((total - free) / 1e9, 1),
        "index load": round(table.load_factor, 3),
    }


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    functions = list(dict.fromkeys(r["function"] for r in rows))
    figure, axes = plt.subplots(1, len(functions), figsize=(4 * len(functions), 4.2))
    for axis, function in zip(axes, functions):
        chosen = [r for r in rows if r["function"] == function]
        at = np.arange(len(chosen))
        for side, name in ((-0.2, "ours"), (0.2, "HierarchicalKV")):
            if name in chosen[0]:
                axis.bar(at + side, [r[name] for r in chosen], 0.4, label=name)
        axis.set_xticks(at, [f"{r['dim']}\n{r['load']:g}" for r in chosen], fontsize=8)
        axis.set_title(function.replace("_", " "))
        axis.set_xlabel("dim, load")
    axes[0].set_ylabel("billion keys/s")
    axes[0].legend()
    figure.suptitle(f"{about['gpu']}, {about['date']}: {BATCH:,} keys a call, {HIT_RATE:.0%} found")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def add_options(parser):
    add_core(parser)
    parser.add_argument("--hkv", help="HierarchicalKV's library")
    parser.add_argument("--dims", type=int, nargs="*", default=[8, 32, 64])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.75, 1.0])
    parser.add_argument("--capacity", type=int, default=1 << 26)
    parser.add_argument("--grow", type=int, default=0)
    parser.add_argument("--tiers", type=int, default=0)


def run(options):
    core, device = start_on_gpu(options)
    library = ctypes.CDLL(options.hkv) if options.hkv else None
    about = device.about() | {"capacity": options.capacity, "keys a call": BATCH, "found": HIT_RATE}
    rows = []
    for dim in options.dims:
        rows += compare(core, device, library, dim, options.loads, options.capacity)
        device.release()
    if rows and library is not None:
        for name in ("ratio", "ratio by clock"):
            about[f"mean {name}"] = round(statistics.geometric_mean(r[name] for r in rows), 3)
            about[f"least {name}"] = min(r[name] for r in rows)
    if options.grow:
        about["growth"] = grow(core, device, options.grow)
    if options.tiers:
        about["tiers"] = table_tiers.move(core, device, options.tiers, BATCH)
    print(about)
    return about, rows
