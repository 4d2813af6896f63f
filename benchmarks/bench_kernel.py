#!/usr/bin/env python3
"""The core's functions alone, without TensorFlow: GB/s and the share of the copy bandwidth.

On a GPU (found through PyTorch) at full size, times by CUDA events around one call, host time
hidden behind a spin of the GPU; on a CPU at a small size, by the wall clock. Medians, over three
sets of ids in turn. Values are checked first, on samples drawn at random, in float64.

    python benchmarks/bench_kernel.py [--workloads onehot26 ...] [--dtypes float32] [--alphas 0]
                                      [--json FILE] [--plot FILE.png] [--cpu]
"""

import argparse

import numpy as np
from kernel_runner import NUM_SETS, Runner, add_workloads, start
from report import print_table, write_results
from workloads import WORKLOADS


class Kernels(Runner):
    """A Runner whose functions are checked and timed one by one."""

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_workloads(parser)
    parser.add_argument("--json", help="file to write")
    parser.add_argument("--plot", help="picture to write")
    options = parser.parse_args()
    core, device, copy, about = start(options)
    rows = []
    for name in options.workloads:
        for dtype in options.dtypes or device.dtypes:
            for alpha in options.alphas:
                kernels = Kernels(core, device, WORKLOADS[name], dtype, alpha)
                row = {"workload": name, "dtype": dtype, "alpha": alpha} | kernels.measure(copy)
                rows.append(row)
                del kernels
    print_table(rows)
    write_results(options, about, rows, plot)


if __name__ == "__main__":
    main()
