"""Rows of served tables on one GPU: quantised ones beside FBGEMM's inference kernels, and a tenth
of a table's rows in GPU memory, the rest in the host's.

    python benchmarks/bench_fbgemm.py served [--tables 26] [--rows 1000000] [--dim 128] [--ids 20]
                                             [--batch 2048] [--large 8000000] [--keys 1048576]

First: sums of so many ids a sample, of tables of which all rows are in GPU memory, by Zipf's law
and uniform. FBGEMM's IntNBitTableBatchedEmbeddingBagsCodegen, where it is installed,
reads int8, fp8 and float32 rows of tables of the same shape. Then: a table of `--large` rows in
float32, of which a tenth has copies, `--keys` row numbers a call, alpha 1.05. Row numbers are there
already: a server finds them on the host. Medians by CUDA events, after calls that fill the cache.
"""

import statistics

import numpy as np
from kernel_runner import add_core, start_on_gpu
from peers import fbgemm
from report import print_table
from workloads import ids_from_uniform

WARM_UP, REPEATS = 200, 20  # before a cache is full
FORMATS = ["float32", "bfloat16", "int8", "fp8"]


class Bench:
    def __init__(self, core, device, args):
        self.core, self.device, self.args = core, device, args

    def draw(self, count, rows, alpha):
        return ids_from_uniform(self.device.uniform(count), rows, alpha, lambda x: x.long())

    def median(self, run, draw, warm_up):
        """run(ids) of fresh ids, which a lookup overwrites."""
        for _ in range(warm_up):
            run(draw())
        times = []
        for _ in range(REPEATS):
            ids = draw()
            times.append(self.device.milliseconds(lambda: run(ids)))  # noqa: B023
        return statistics.median(times)

    def values(self, rows, dim):
        draw = np.random.default_rng(1)
        return draw.uniform(-1, 1, [rows, dim]).astype(np.float32)

    def pooled(self, format, alpha):
        """Milliseconds of one lookup of all tables."""
        args = self.args
        samples = args.batch * args.tables
        rows = self.core.ServedRows(
            [self.values(args.rows, args.dim)] * args.tables,
            format=format,
            resident=True,
            allocate=self.device.allocate,
        )
        splits = self.device.int64(np.arange(samples + 1) * args.ids)
        outputs = [self.device.empty((args.batch, args.dim), "float32") for _ in range(args.tables)]

        def run(ids):
            rows.lookup(
                ids,
                num_ids=[args.batch * args.ids] * args.tables,
                row_splits=splits,
                outputs=outputs,
                table_of_feature=list(range(args.tables)),
                combiners=["sum"] * args.tables,
                stream=self.device.stream,
            )

        return self.median(run, lambda: self.draw(samples * args.ids, args.rows, alpha), 5)

    def fbgemm(self, format, alpha):
        import torch
        from fbgemm_gpu.split_embedding_configs import SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
            IntNBitTableBatchedEmbeddingBagsCodegen,
        )

        args = self.args
        types = {"int8": SparseType.INT8, "fp8": SparseType.FP8, "float32": SparseType.FP32}
        if format not in types:
            return None
        peer = IntNBitTableBatchedEmbeddingBagsCodegen(
            [("", args.rows, args.dim, types[format], EmbeddingLocation.DEVICE)] * args.tables,
            output_dtype=SparseType.FP32, device=torch.device("cuda"),
        )  # fmt: skip
        peer.fill_random_weights()
        samples = args.batch * args.tables
        offsets = (torch.arange(samples + 1, device="cuda") * args.ids).int()
        return self.median(
            lambda ids: peer(ids, offsets),
            lambda: self.draw(samples * args.ids, args.rows, alpha).int(),
            5,
        )

    def large(self):
        """A tenth of the rows in GPU memory."""
        args = self.args
        row_bytes = args.dim * 4 + 13  # with what belongs to a copy
        rows = self.core.ServedRows(
            [self.values(args.large, args.dim)],
            copies_bytes=int(0.1 * args.large * row_bytes),
            allocate=self.device.allocate,
        )
        output = self.device.empty((args.keys, args.dim), "float32")

        def run(ids):
            rows.lookup(
                ids, num_ids=[args.keys], outputs=[output], table_of_feature=[0],
                combiners=["sum"], stream=self.device.stream,
            )  # fmt: skip

        milliseconds = self.median(run, lambda: self.draw(args.keys, args.large, 1.05), WARM_UP)
        before = rows.counts(0)
        run(self.draw(args.keys, args.large, 1.05))
        counts = rows.counts(0)
        return {
            "ms": round(milliseconds, 3),
            "M keys/s": round(args.keys / milliseconds / 1e3),
            "ids that found a copy": round((counts["found"] - before["found"]) / args.keys, 3),
            "rows brought": counts["brought"] - before["brought"],
        }


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4))
    labels = [f"{row['format']}, {row['ids']}" for row in rows]
    places = np.arange(len(rows))
    axis.bar(places - 0.2, [row["ours ms"] for row in rows], 0.4, label="group_embedding")
    peers = [row["FBGEMM ms"] or 0 for row in rows]
    axis.bar(places + 0.2, peers, 0.4, label="FBGEMM", color="tab:gray")
    axis.set_xticks(places, labels, rotation=30, ha="right", fontsize=8)
    axis.set_ylabel("a lookup of all tables, ms")
    axis.set_title(f"{about['gpu']}, {about['date']}", fontsize=10)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def add_options(parser):
    for name, value in {
        "tables": 26, "rows": 1_000_000, "dim": 128, "ids": 20, "batch": 2048,
        "large": 8_000_000, "keys": 1 << 20,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    add_core(parser)


def run(options):
    core, device = start_on_gpu(options)
    bench = Bench(core, device, options)
    rows = []
    for alpha, ids in {1.05: "Zipf", 0: "uniform"}.items():
        for format in FORMATS:
            ours = bench.pooled(format, alpha)
            peer = bench.fbgemm(format, alpha) if fbgemm.is_installed() else None
            rows.append(
                {
                    "format": format,
                    "ids": ids,
                    "ours ms": round(ours, 3),
                    "FBGEMM ms": peer and round(peer, 3),
                    "ratio": peer and round(peer / ours, 2),
                }
            )
            print(rows[-1], flush=True)
            device.release()
    large = bench.large()
    print_table([large])
    return device.about() | {"a tenth in GPU memory": large}, rows
