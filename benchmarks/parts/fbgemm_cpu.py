#!/usr/bin/env python3
"""The core on a CPU, without TensorFlow, beside FBGEMM's CPU kernels where these are installed.

Ids of SparseTensors are packed into one buffer; packed ids are looked up (mean) and, in a step, the
tables are updated from the gradients of the outputs. FBGEMM takes ids that are packed. Medians of
--repeats calls, library by library on the same ids, each on --threads threads.

    python benchmarks/bench_cpu_core.py [--threads 2] [--repeats 15] [--json FILE] [--plot FILE.png]

    pip install torch fbgemm-gpu-cpu     the peer, in an environment of its own with this Python
"""

import argparse
import statistics
import time

import numpy as np
from bench_kernel import CORE, load_core
from bench_train import HYPER
from report import machine, print_table, write_results

# features, samples, ids a sample, dim, rows of a table
SHAPES = [(100, 1024, 5, 16, 10_000), (100, 1024, 5, 16, 100_000), (26, 2048, 1, 128, 100_000)]
RULES = ["sgd", "rowwise_adagrad", "adagrad"]


def median_ms(run, repeats):
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return round(statistics.median(times), 3)


def own(core, shape, ids, args):
    features, batch, hotness, dim, rows = shape
    per_feature = batch * hotness
    samples = np.repeat(np.arange(batch), hotness)
    indices = np.stack([samples, np.tile(np.arange(hotness), batch)], 1)
    grouping = core.Grouping(
        [
            core.sparse_ids(
                ids[f * per_feature :][:per_feature], indices, np.array([batch, hotness])
            )
            for f in range(features)
        ],
        num_threads=args.threads,
    )
    buffer = np.empty(grouping.layout["size"], np.float32)
    figures = {"packing ms": median_ms(lambda: grouping.run(buffer), args.repeats)}
    random = np.random.default_rng(1)
    tables = [random.standard_normal((rows, dim), np.float32) * 0.01 for _ in range(features)]
    splits = np.arange(0, len(ids) + 1, hotness)
    output = np.empty((batch, features * dim), np.float32)
    columns = [output[:, f * dim : (f + 1) * dim] for f in range(features)]
    group = core.Group(
        tables=tables, outputs=columns, ids=ids, row_splits=splits,
        table_of_feature=list(range(features)), combiners=["mean"] * features,
        max_norms=[0.0] * features, num_threads=args.threads,
    )  # fmt: skip
    figures["forward ms"] = median_ms(group.lookup, args.repeats)
    hyper = np.array([HYPER.get(name, 0) for name in core.hyper_names], np.float32)
    for rule in RULES:
        num_slots, row_slot = core.rules[rule]
        slots = [
            [
                np.full(rows if s == row_slot else (rows, dim), 0.1, np.float32)
                for s in range(num_slots)
            ]
            for _ in range(features)
        ]
        update = core.Update(group, rule=rule, slots=slots, hyper=hyper)

        def step(update=update):
            group.lookup()  # the gradient is the output itself
            update.run()

        figures[f"{rule} step ms"] = median_ms(step, args.repeats)
    return figures


def fbgemm(shape, ids, args):
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    torch.set_num_threads(args.threads)
    features, batch, hotness, dim, rows = shape
    ids, offsets = torch.as_tensor(ids), torch.arange(0, len(ids) + 1, hotness)
    gradient = torch.randn(batch, features * dim) * 0.01
    kinds = {
        "sgd": EmbOptimType.EXACT_SGD,
        "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
    }
    figures = {"packing ms": None}
    for rule in RULES:
        peer = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * features,
            optimizer=kinds[rule], learning_rate=0.01, eps=1e-7,
            weights_precision=SparseType.FP32, output_dtype=SparseType.FP32,
            pooling_mode=PoolingMode.MEAN, device=torch.device("cpu"),
        )  # fmt: skip
        peer.init_embedding_weights_uniform(-0.01, 0.01)
        if "forward ms" not in figures:
            figures["forward ms"] = median_ms(lambda p=peer: p(ids, offsets), args.repeats)
        figures[f"{rule} step ms"] = median_ms(
            lambda p=peer: p(ids, offsets).backward(gradient), args.repeats
        )
    return figures


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    names = [name for name in rows[0] if name.endswith(" ms") and name != "packing ms"]
    figure, axes = plt.subplots(1, len(SHAPES), figsize=(12, 4))
    for axis, shape in zip(axes, map(str, SHAPES)):
        of_shape = [row for row in rows if str(shape) in row.values()]
        for at, row in enumerate(of_shape):
            places = [i + 0.4 * at for i in range(len(names))]
            axis.barh(places, [row[name] for name in names], 0.4, label=row["library"])
        axis.set_yticks([i + 0.2 for i in range(len(names))], names, fontsize=7)
        axis.set_xscale("log")
        axis.set_title(shape, fontsize=8)
    axes[0].invert_yaxis()
    axes[0].legend(fontsize=7)
    figure.suptitle(f"{about['cpu']}, {about['threads']} threads, {about['date']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", help="file to write")
    parser.add_argument("--plot", help="picture to write")
    parser.add_argument("--core", default=CORE, help="folder of the library")
    args = parser.parse_args()
    core = load_core(args.core)
    try:
        import fbgemm_gpu  # noqa: F401

        has_peer = True
    except ImportError:
        has_peer = False
    rows = []
    for shape in SHAPES:
        features, batch, hotness, _, num_rows = shape
        ids = np.random.default_rng(0).integers(0, num_rows, features * batch * hotness)
        libraries = {"group_embedding": lambda s=shape, i=ids: own(core, s, i, args)}
        if has_peer:
            libraries["FBGEMM"] = lambda s=shape, i=ids: fbgemm(s, i, args)
        for name, measure in libraries.items():
            row = {"library": name, "features x samples x ids, dim, rows": str(shape)} | measure()
            rows.append(row)
            print(row, flush=True)
    print_table(rows)
    write_results(args, machine() | {"threads": args.threads}, rows, plot)


if __name__ == "__main__":
    main()
