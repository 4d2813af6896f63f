"""Tables on a GPU that are full and evict, beside NVIDIA HierarchicalKV, which then does as well.

Time: a find-or-insert of 1,048,576 different keys, of which all but a share of new ones are in each
of three tables: ours with a budget of `--keys` keys, of which the least recent go; ours without a
budget, with space for all; and HierarchicalKV with space for `--keys` and its LRU. Both ours are
filled alike. The tables take turns. The first half of the calls is timed by CUDA events, with the
host's time hidden behind a spin of the GPU, the second by the wall clock around a call and a wait.
An eviction of ours makes space for many calls (128 with 5% new keys, 16 with 40%), so that mean and
99th percentile count as well: a half has a multiple of these.

Hits: a stream of Zipf's keys through HierarchicalKV and through ours with as many keys as fit into
the GPU memory that HierarchicalKV takes (within 1%), all counted, as seen from outside. Each
batch's keys are made different. The share of them that were in the table, in the last half of the
stream: of different keys, and of the ids that they stand for.

    python benchmarks/bench_table.py evict [--hkv libhierarchicalkv.so] [--keys 67108864]
                                           [--dim 64] [--new 0.05 0.4] [--calls 512 64]
                                           [--stream 400] [--stream-keys 16777216]
                                           [--numbers 134217728] [--keep 0.9]

`--calls`: of each share of new keys. `--stream`: batches; 0: none. `--stream-keys`: for which
HierarchicalKV has space. `--numbers`: keys that may come. peers/hierarchicalkv.cu says how to build
the library. Values of keys found are compared before anything is timed.
"""

import ctypes
import functools
import itertools
import statistics
import time

import numpy as np
from kernel_runner import add_core, start_on_gpu
from parts.table_gpu import BATCH, MATRIX_ROWS, HierarchicalKv, Ours, keys_of
from report import print_table

FUNCTIONS = ("find_or_insert", "find_or_insert_rows")
EXPONENT = 1.05
WHERE = "cuda"
WARM_UP = 4  # calls
POLICIES = ("least_recent", "least_frequent")


class WithBudget(Ours):
    name = "ours, full"

    def __init__(self, core, device, options, matrix, num_keys, evict="least_recent"):
        budget = core.Budget(max_keys=num_keys, keep=options.keep, evict=evict)
        super().__init__(core, device, options.dim, matrix, num_keys, budget=budget)

    def num_evicted(self):
        return self.table.budget_counts()["evicted"]


class Stream:
    """Numbers of keys: known ones come again and again, new ones never came before."""

    def __init__(self, device, num_known):
        self.device, self.num_known, self.next_new = device, num_known, num_known

    def new_keys(self, count):
        self.next_new += count
        return keys_of(self._range(self.next_new - count, self.next_new))

    def batch(self, share_new):
        """BATCH different keys; of those that are known, all come in turn."""
        torch = self.device.torch
        num_new = int(BATCH * share_new)
        known = keys_of(torch.randperm(self.num_known, device=WHERE)[: BATCH - num_new])
        keys = torch.cat([known, self.new_keys(num_new)])
        return keys[torch.randperm(BATCH, device=WHERE)].contiguous()

    def _range(self, begin, end):
        return self.device.torch.arange(begin, end, device=WHERE)


def fill(tables, stream, num_keys):
    """So many keys: those that never come again first, then the known ones."""
    known = keys_of(stream._range(0, stream.num_known))
    for begin in range(0, num_keys - stream.num_known, BATCH):
        keys = stream.new_keys(min(BATCH, num_keys - stream.num_known - begin))
        for table in tables:
            table.fill(keys)
    for keys in known.split(BATCH):
        for table in tables:
            table.fill(keys)


def check(tables, stream, matrix):
    """Known keys are found, and have their values."""
    keys = keys_of(stream._range(0, stream.num_known))[-BATCH:].contiguous()
    expected = matrix[keys & (MATRIX_ROWS - 1)]
    for table in tables:
        table.values.zero_()
        table.find(keys)
        table.find_rows(keys)
        found = table.found()[: len(keys)]
        share = found.float().mean().item()
        right = (table.values[: len(keys)][found] == expected[found]).all(1).float().mean().item()
        print(f"{table.name}: {share:.4%} of known keys found, {right:.4%} right", flush=True)
        assert share > 0.99 and right == 1, table.name


def by_clock(device, call):
    """Milliseconds of a call and of waiting for it."""
    device.torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    device.torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def time_calls(device, tables, function, stream, share_new, calls):
    """{(table's name, clock): milliseconds of its calls}"""
    times = {(table.name, clock): [] for table in tables for clock in ("events", "clock")}
    for number in range(-WARM_UP, calls):
        keys = stream.batch(share_new)
        turn = number % len(tables)
        clock = "events" if number < calls // 2 else "clock"
        for table in tables[turn:] + tables[:turn]:
            table.prepare(keys)
            call = functools.partial(getattr(table, function), keys)
            took = device.milliseconds(call) if clock == "events" else by_clock(device, call)
            if number >= 0:
                times[table.name, clock].append(took)
    return times


def rows_of(times, names, clock):
    """A row of each table. "of full": its time in multiples of that of ours that is full."""
    whole = {}
    for name in names:
        ms = times[name, clock]
        whole[name] = {
            "table": name,
            "median ms": round(statistics.median(ms), 4),
            "mean ms": round(statistics.fmean(ms), 4),
            "p99 ms": round(float(np.percentile(ms, 99)), 4),
            "largest ms": round(max(ms), 4),
        }
    full = whole[names[0]]
    for row in whole.values():
        row |= {f"{what} of full": round(row[f"{what} ms"] / full[f"{what} ms"], 3)
                for what in ("median", "mean", "p99")}  # fmt: skip
    return list(whole.values())


def compare(core, device, library, options):
    """Rows for each function, share of new keys and clock."""
    num_keys = options.keys
    num_new = sum(
        int(BATCH * share) * (calls + WARM_UP) for share, calls in zip(options.new, options.calls)
    )
    matrix = device.normal((MATRIX_ROWS, options.dim), "float32")
    space = num_keys + len(FUNCTIONS) * num_new + BATCH
    full = WithBudget(core, device, options, matrix, num_keys)
    tables = [full, Ours(core, device, options.dim, matrix, space)]
    if library is not None:
        tables.append(HierarchicalKv(library, device, options.dim, matrix, num_keys))
    stream = Stream(device, num_keys // 8)
    # More than there is space for, so that all that can be full is.
    fill(tables[:1] + tables[2:], stream, num_keys + num_keys // 4)
    stream.next_new = stream.num_known
    fill(tables[1:2], stream, num_keys)
    stream.next_new = num_keys + num_keys // 4
    check(tables, stream, matrix)
    rows = []
    for (share, calls), function in itertools.product(zip(options.new, options.calls), FUNCTIONS):
        had = full.num_evicted()
        times = time_calls(device, tables, function, stream, share, calls)
        names = [table.name for table in tables]
        for clock in ("events", "clock"):
            about = {"function": function, "new": share, "by": clock, "calls": calls // 2}
            rows += [about | row for row in rows_of(times, names, clock)]
            print_table(rows[-len(names) :])
        print(f"evicted: {full.num_evicted() - had:,}; loads: "
              f"{[round(table.load(), 3) for table in tables]}", flush=True)  # fmt: skip
    return rows


def bytes_in_use(device):
    """Bytes of the GPU that are taken, beside those of PyTorch."""
    device.torch.cuda.synchronize()
    free, total = device.torch.cuda.mem_get_info()
    return total - free - device.torch.cuda.memory_reserved()


class Zipf:
    """Batches of a stream, the same for every table: (different keys, ids of each)."""

    def __init__(self, device, numbers):
        self.device = device
        weights = (
            device.torch.arange(1, numbers + 1, device=WHERE, dtype=device.torch.float64)
            ** -EXPONENT
        )
        self.sums = weights.cumsum(0)
        self.sums /= self.sums[-1].item()

    def batch(self, number):
        torch = self.device.torch
        torch.manual_seed(1000 + number)
        drawn = torch.rand(BATCH, device=WHERE, dtype=torch.float64)
        return keys_of(torch.searchsorted(self.sums, drawn)).unique(return_counts=True)


def pass_stream(device, table, zipf, num_batches):
    """(share of different keys that were there, share of ids, most bytes in use)"""
    hits = device.zeros((2,), "float64")
    seen = device.zeros((2,), "float64")
    most = 0
    for number in range(num_batches):
        keys, ids = zipf.batch(number)
        table.find_rows(keys)
        if number >= num_batches // 2:
            found = table.found()[: len(keys)]
            hits[0] += found.sum()
            hits[1] += (found * ids).sum()
            seen[0] += len(keys)
            seen[1] += ids.sum()
        table.find_or_insert_rows(keys)
        if number % 8 == 0:
            most = max(most, bytes_in_use(device))
    return *(device.host(hits / seen).tolist()), max(most, bytes_in_use(device))


def make_full(core, device, options, matrix, evict, limit):
    """How many keys ours may have, full and after evictions, in `limit` bytes of the GPU."""
    num_keys = options.stream_keys * 3 // 4
    for _ in range(5):
        before = bytes_in_use(device)
        table = WithBudget(core, device, options, matrix, num_keys, evict)
        stream = Stream(device, 0)
        most = 0
        for _ in range(num_keys * 5 // 4 // BATCH + 1):  # it is full, and has evicted
            table.fill(stream.new_keys(BATCH))
            most = max(most, bytes_in_use(device) - before)
        print(f"{num_keys:,} keys take {most:,} of {limit:,} bytes", flush=True)
        if 0.99 * limit <= most <= limit:
            return num_keys
        num_keys = int(num_keys * 0.996 * limit / most)
        del table
        device.release()
    raise RuntimeError(f"expected keys that take {limit:,} bytes, got {most:,} for {num_keys:,}")


def compare_hits(core, device, library, options):
    """A row of HierarchicalKV, and one of each policy of ours at the same bytes."""
    matrix = device.normal((MATRIX_ROWS, options.dim), "float32")
    zipf = Zipf(device, options.numbers)
    rows, limit = [], options.stream_keys * (options.dim * 4 + 17)

    def pass_through(table, name, num_keys, before):
        by_key, by_id, most = pass_stream(device, table, zipf, options.stream)
        rows.append(
            {
                "table": name,
                "keys": num_keys,
                "bytes": most - before,
                "hit rate of keys": round(by_key, 5),
                "hit rate of ids": round(by_id, 5),
            }
        )
        print(rows[-1], flush=True)
        return most - before

    if library is not None:
        before = bytes_in_use(device)
        peer = HierarchicalKv(library, device, options.dim, matrix, options.stream_keys)
        limit = pass_through(peer, "HierarchicalKV, LRU", options.stream_keys, before)
        del peer
        device.release()
    num_keys = None
    for evict in POLICIES:
        if num_keys is None:
            num_keys = make_full(core, device, options, matrix, evict, limit)
            device.release()
        before = bytes_in_use(device)
        table = WithBudget(core, device, options, matrix, num_keys, evict)
        pass_through(table, f"ours, {evict.replace('_', ' ')}", num_keys, before)
        del table
        device.release()
    return rows


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    timed = [row for row in rows if row.get("by") == "events"]
    hits = [row for row in rows if "hit rate of keys" in row]
    figure, axes = plt.subplots(1, 1 + bool(hits), figsize=(11, 4), squeeze=False)
    names = list(dict.fromkeys(row["table"] for row in timed))
    cases = list(dict.fromkeys((row["function"], row["new"]) for row in timed))
    for i, name in enumerate(names):
        of_table = [row for row in timed if row["table"] == name]
        at = np.arange(len(cases)) + 0.27 * (i - 1)
        axes[0, 0].bar(at, [row["mean ms"] for row in of_table], 0.25, label=f"{name}: mean")
        label = "99th percentile" if i == 0 else None
        axes[0, 0].plot(at, [row["p99 ms"] for row in of_table], "k_", markersize=12, label=label)
    words = {"find_or_insert": "rows copied", "find_or_insert_rows": "row numbers"}
    labels = [f"{words[function]}\n{new:.0%} new" for function, new in cases]
    axes[0, 0].set_xticks(np.arange(len(cases)), labels, fontsize=8)
    axes[0, 0].set(ylabel="ms a call of 1,048,576 keys", title="find or insert in full tables")
    axes[0, 0].legend(fontsize=8)
    for axis in axes[0, 1:]:
        axis.barh([row["table"] for row in hits], [row["hit rate of keys"] for row in hits])
        axis.set(title="hit rate of keys at equal bytes", xlim=(0, 1))
    figure.suptitle(f"{about['gpu']}, {about['date']}: {about['keys']:,} keys, dim {about['dim']}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def add_options(parser):
    add_core(parser)
    parser.add_argument("--hkv", help="HierarchicalKV's library")
    parser.add_argument("--keys", type=int, default=1 << 26)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--new", type=float, nargs="+", default=[0.05, 0.4])
    parser.add_argument("--calls", type=int, nargs="+", default=[512, 64])
    parser.add_argument("--keep", type=float, default=0.9, help="the low mark of ours")
    parser.add_argument("--stream", type=int, default=400)
    parser.add_argument("--stream-keys", type=int, default=1 << 24)
    parser.add_argument("--numbers", type=int, default=1 << 27)


def run(options):
    core, device = start_on_gpu(options)
    library = ctypes.CDLL(options.hkv) if options.hkv else None
    about = device.about() | {"keys": options.keys, "dim": options.dim, "keys a call": BATCH}
    begin = time.monotonic()
    rows = compare(core, device, library, options)
    device.release()
    print(f"{time.monotonic() - begin:.0f} s", flush=True)
    if options.stream:
        rows += compare_hits(core, device, library, options)
    print(f"{time.monotonic() - begin:.0f} s", flush=True)
    return about, rows
