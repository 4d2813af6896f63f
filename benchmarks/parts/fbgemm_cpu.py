"""The core on a CPU, without TensorFlow, beside FBGEMM's CPU kernels where these are installed.

Ids of SparseTensors are packed into one buffer; packed ids are looked up (mean) and, in a step, the
tables are updated from the gradients of the outputs. FBGEMM takes ids that are packed. Medians of
--repeats calls, library by library on the same ids, each on --threads threads.

    python benchmarks/bench_fbgemm.py cpu [--threads 2] [--repeats 15] [--shapes 26x64x1x8x100]

    pip install torch fbgemm-gpu-cpu     the peer, in an environment of its own with this Python
"""

import statistics
import time

import numpy as np
from kernel_runner import add_core, load_core
from parts.fbgemm_train import HYPER
from peers import fbgemm
from report import machine

SHAPES = [(100, 1024, 5, 16, 10_000), (100, 1024, 5, 16, 100_000), (26, 2048, 1, 128, 100_000)]
SHAPE = "features x samples x ids, dim, rows"
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


def peer(shape, ids, args):
    import torch

    torch.set_num_threads(args.threads)
    features, batch, hotness, dim, rows = shape
    ids, offsets = torch.as_tensor(ids), torch.arange(0, len(ids) + 1, hotness)
    gradient = torch.randn(batch, features * dim) * 0.01
    figures = {"packing ms": None}
    for rule in RULES:
        tables = fbgemm.make_tables([(rows, dim)] * features, rule, "HOST", "MEAN", eps=1e-7)
        tables.init_embedding_weights_uniform(-0.01, 0.01)
        if "forward ms" not in figures:
            figures["forward ms"] = median_ms(lambda t=tables: t(ids, offsets), args.repeats)
        figures[f"{rule} step ms"] = median_ms(
            lambda t=tables: t(ids, offsets).backward(gradient), args.repeats
        )
    return figures


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    names = [name for name in rows[0] if name.endswith(" ms") and name != "packing ms"]
    shapes = list(dict.fromkeys(row[SHAPE] for row in rows))
    figure, axes = plt.subplots(1, len(shapes), figsize=(12, 4), squeeze=False)
    axes = axes[0]
    for axis, shape in zip(axes, shapes):
        of_shape = [row for row in rows if row[SHAPE] == shape]
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


def add_options(parser):
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--shapes",
        nargs="+",
        type=lambda text: tuple(map(int, text.split("x"))),
        default=SHAPES,
        help="features x samples x ids a sample x dim x rows of a table",
    )
    add_core(parser)


def run(options):
    core = load_core(options.core)
    libraries = {"group_embedding": lambda *case: own(core, *case)}
    if fbgemm.is_installed():
        libraries["FBGEMM"] = peer
    rows = []
    for shape in options.shapes:
        features, batch, hotness, _, num_rows = shape
        ids = np.random.default_rng(0).integers(0, num_rows, features * batch * hotness)
        for name, measure in libraries.items():
            row = {"library": name, SHAPE: str(shape)}
            rows.append(row | measure(shape, ids, options))
            print(rows[-1], flush=True)
    return machine() | {"threads": options.threads}, rows
