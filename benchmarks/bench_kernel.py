#!/usr/bin/env python3
"""The core's functions alone, without TensorFlow: GB/s and the share of the copy bandwidth.

On a GPU (found through PyTorch) at full size, times by CUDA events around one call, host time
hidden behind a spin of the GPU; on a CPU at a small size, by the wall clock. Medians, over three
sets of ids in turn. Values are checked first, on samples drawn at random, in float64.

    python benchmarks/bench_kernel.py [--workloads onehot26 ...] [--dtypes float32] [--alphas 0]
                                      [--json FILE] [--plot FILE.png] [--cpu]
"""

import argparse
import importlib.util
import statistics
import sys
from pathlib import Path

import numpy as np
from devices import choose_device
from report import print_table, write_results
from workloads import ALPHAS, POOLED, WORKLOADS, ids_from_uniform

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "tests" / "support"  # where buildtools.core_module writes it
NUM_SETS = 3


def load_core(folder):
    """The core alone: importing it through the package would import TensorFlow."""
    libraries = sorted(Path(folder).glob(f"_core.c*{sys.version_info.minor}-*.so"))
    if not libraries:
        sys.exit(
            f"no _core library for this Python in {folder}; run `python -m buildtools.core_module`"
        )
    spec = importlib.util.spec_from_file_location("_core", libraries[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Runner:
    """One workload on a device: tables, outputs, and a Group for each set of ids."""

    def __init__(self, core, device, workload, dtype, alpha):
        self.core, self.device, self.dtype = core, device, dtype
        self.workload = device.shape(workload)
        w = self.workload
        self.tables = [device.normal((r, d), dtype) for r, d in zip(w.rows, w.dims)]
        self.output = device.normal((w.batch, sum(w.dims)), dtype)
        ends = np.cumsum(w.dims)
        outputs = [self.output[:, end - dim : end] for end, dim in zip(ends, w.dims)]
        lengths = np.repeat(w.hotness, w.batch)
        self.row_splits = device.int64(np.concatenate([[0], lengths.cumsum()]))
        self.ids = [self.draw_ids(alpha) for _ in range(NUM_SETS)]
        self.groups = [self.make_group(outputs, ids) for ids in self.ids]

    def make_group(self, outputs, ids):
        count = len(self.tables)
        return self.core.Group(
            tables=self.tables, outputs=outputs, ids=ids, row_splits=self.row_splits,
            dtype=self.dtype, table_of_feature=list(range(count)), combiners=["sum"] * count,
            max_norms=[0.0] * count, allocate=self.device.allocate)  # fmt: skip

    def draw_ids(self, alpha):
        w, device = self.workload, self.device
        return device.concatenate(
            [
                ids_from_uniform(device.uniform(h * w.batch), rows, alpha, device.int64)
                for h, rows in zip(w.hotness, w.rows)
            ]
        )

    def median(self, run):
        """run(i): with set i."""
        warm_up = 5 if self.device.name == "gpu" else 1
        times = [
            self.device.milliseconds(lambda i=i: run(i % NUM_SETS))
            for i in range(warm_up + self.device.repeats)
        ]
        return statistics.median(times[warm_up:])

    def samples_of(self, feature, ids, count):
        """(samples, [count, hotness] ids) of samples drawn at random."""
        w = self.workload
        samples = np.random.default_rng(feature).integers(0, w.batch, count)
        hotness = w.hotness[feature]
        first = w.batch * sum(w.hotness[:feature])
        at = first + samples[:, None] * hotness + np.arange(hotness)
        return samples, self.device.host(ids[self.device.int64(at)])

    def check(self):
        """Forward and backward against float64, on some samples and rows of each feature."""
        w, device = self.workload, self.device
        error = {"float32": 1e-5, "float16": 2e-2}[self.dtype]
        _, num_unique, indices, values = self.gradients(0)
        end = 0
        for f, dim in enumerate(w.dims):
            columns, end = slice(end, end + dim), end + dim
            row = self.samples_of(f, self.ids[0], 1)[1][0, 0]
            first = w.batch * sum(w.hotness[:f])
            of_feature = device.host(self.ids[0][first : first + w.batch * w.hotness[f]])
            uses = np.flatnonzero(of_feature == row) // w.hotness[f]
            gradient = device.host(self.output[device.int64(uses)][:, columns]).astype(np.float64)
            at = np.searchsorted(device.host(indices[f]), row)
            np.testing.assert_allclose(
                device.host(values[f][at]).astype(np.float64),
                gradient.sum(0),
                atol=error * len(uses) ** 0.5,
                rtol=error,
            )
            assert num_unique[f] == np.unique(of_feature).size
        self.groups[0].lookup(device.stream)
        self.groups[0].check(device.stream)
        end = 0
        for f, dim in enumerate(w.dims):
            columns, end = slice(end, end + dim), end + dim
            samples, ids = self.samples_of(f, self.ids[0], 32)
            rows = device.host(self.tables[f][device.int64(ids.ravel())]).astype(np.float64)
            np.testing.assert_allclose(
                device.host(self.output[device.int64(samples)][:, columns]).astype(np.float64),
                rows.reshape(32, -1, dim).sum(1),
                atol=error * w.hotness[f] ** 0.5,
                rtol=error,
            )

    def gradients(self, i):
        """Sorts set i; (group, unique rows per table, arrays for their gradients)."""
        group, device = self.groups[i], self.device
        group.sort_rows(device.stream)
        num_unique = np.diff(group.num_unique(device.stream)).tolist()
        indices = [device.empty((n,), "int64") for n in num_unique]
        values = [device.empty((n, d), self.dtype) for n, d in zip(num_unique, self.workload.dims)]
        group.reduce_rows(indices, values, device.stream)
        return group, num_unique, indices, values

    def make_grouping(self):
        """A function that brings the ids of set i, as SparseTensors, into one batch."""
        w, device = self.workload, self.device
        ends = w.batch * np.cumsum(w.hotness)
        indices = []
        for hotness in w.hotness:
            at = np.arange(w.batch * hotness)
            indices.append(device.int64(np.stack([at // hotness, at % hotness], axis=1)))
        groupings = [
            self.core.Grouping([
                self.core.sparse_ids(ids[end - len(at):end], at, [w.batch, hotness])
                for end, at, hotness in zip(ends, indices, w.hotness)
            ], allocate=device.allocate)
            for ids in self.ids
        ]  # fmt: skip
        buffer = device.empty((groupings[0].layout["size"],), "float32")
        groupings[0].run(buffer, device.stream)
        groupings[0].check(device.stream)
        splits = device.host(buffer[: 2 * self.row_splits.shape[0]]).view(np.int64)
        np.testing.assert_array_equal(splits, device.host(self.row_splits))
        return lambda i: groupings[i].run(buffer, device.stream)

    def measure(self, copy):
        w, stream = self.workload, self.device.stream
        self.check()
        element_bytes = np.dtype(self.dtype).itemsize
        group = self.median(self.make_grouping())
        forward = self.median(lambda i: self.groups[i].lookup(stream))
        sort = self.median(lambda i: self.groups[i].sort_rows(stream))
        ready = [self.gradients(i) for i in range(NUM_SETS)]
        reduce = self.median(lambda i: ready[i][0].reduce_rows(ready[i][2], ready[i][3], stream))
        forward_rate = w.forward_bytes(element_bytes) / forward / 1e6
        num_unique = [int(np.mean(counts)) for counts in zip(*(r[1] for r in ready))]
        reduce_rate = w.reduce_bytes(element_bytes, num_unique) / reduce / 1e6
        return {
            "group ms": round(group, 4),
            "forward ms": round(forward, 4),
            "GB/s": round(forward_rate, 1),
            "of copy": f"{forward_rate / copy:.0%}",
            "sort ms": round(sort, 4),
            "reduce ms": round(reduce, 4),
            "reduce GB/s": round(reduce_rate, 1),
            "reduce of copy": f"{reduce_rate / copy:.0%}",
            "unique": sum(num_unique),
        }


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    labels = [f"{r['workload']}\n{r['dtype']}, alpha {r['alpha']:g}" for r in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 0.45 * len(rows) + 1.8), sharey=True)
    y = np.arange(len(rows))
    shares = [100 * r["GB/s"] / about["copy GB/s"] for r in rows]
    left.barh(y, shares, color="tab:blue")
    for at, share, row in zip(y, shares, rows):
        left.text(
            share + 1,
            at,
            f"{row['forward ms']:.3f} ms",
            va="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    left.axvline(100, color="black", linewidth=1)
    left.set_yticks(y, labels, fontsize=8)
    left.invert_yaxis()
    left.set_xlim(0, max(115, 1.12 * max(shares)))
    left.set_xlabel(
        f"forward: % of the copy bandwidth, {about['copy GB/s']:.0f} GB/s (over 100: from caches)"
    )
    sort = np.array([r["sort ms"] for r in rows])
    reduce = np.array([r["reduce ms"] for r in rows])
    right.barh(y, sort, color="tab:orange", label="sort")
    right.barh(y, reduce, left=sort, color="tab:green", label="reduce")
    right.set_xlabel("backward to gradients per row, ms")
    right.legend()
    figure.suptitle(f"{about.get('gpu') or about['cpu']}, {about['date']}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def make_parser(doc):
    """The arguments that benchmarks of the core share."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=POOLED)
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "float16"])
    parser.add_argument("--alphas", nargs="+", type=float, default=ALPHAS)
    parser.add_argument("--json", help="file to write")
    parser.add_argument("--plot", help="picture to write")
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    parser.add_argument("--core", default=CORE, help="folder of the library")
    return parser


def start(args):
    """(core, device, GB/s of a copy there, what the figures are measured on)"""
    core = load_core(args.core)
    device = choose_device(core, args.cpu)
    copy = device.copy_bandwidth()
    about = device.about() | {"copy GB/s": round(copy, 1), "sizes": device.name}
    print(about, flush=True)
    return core, device, copy, about


def main():
    args = make_parser(__doc__).parse_args()
    core, device, copy, about = start(args)
    rows = []
    for name in args.workloads:
        for dtype in args.dtypes or device.dtypes:
            for alpha in args.alphas:
                runner = Runner(core, device, WORKLOADS[name], dtype, alpha)
                row = {"workload": name, "dtype": dtype, "alpha": alpha} | runner.measure(copy)
                rows.append(row)
                del runner
    print_table(rows)
    write_results(args, about, rows, plot)


if __name__ == "__main__":
    main()
