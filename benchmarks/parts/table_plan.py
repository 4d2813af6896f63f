"""Bytes of tables that `ge.plan` computes, beside those of tables that are trained, on a CPU.

Each table grows by steps of new keys. Bytes are those that the table counts.

    python benchmarks/bench_table.py plan [--dims 16 64] [--optimizers adagrad adam rowwiseadam]
                                          [--keys 400000]
"""

import numpy as np
from report import machine

STEPS = 24  # of a table that grows


def add_options(parser):
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument(
        "--optimizers", nargs="+", default=["adagrad", "adam", "rowwiseadam"], metavar="NAME"
    )
    parser.add_argument("--keys", type=int, default=400_000)


def run(options):
    rows = [
        row
        for dim in options.dims
        for optimizer in options.optimizers
        for row in compare(dim, optimizer, options.keys)
    ]
    return {"benchmark": "bench_table plan", **vars(options), **machine()}, rows


def compare(dim, name, most):
    import tensorflow as tf

    import group_embedding as ge

    optimizers = {
        "adagrad": lambda: ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)),
        "adam": lambda: ge.optimizers.wrap(tf.keras.optimizers.Adam(0.1)),
        "rowwiseadam": lambda: ge.optimizers.RowwiseAdam(0.1),
    }
    optimizer = optimizers[name]()
    table = ge.keyed_table(f"{name}_{dim}", dim)
    feature = ge.FeatureConfig("keys", ge.TableConfig("keys", None, dim))
    sizes = np.unique(np.geomspace(max(1, most / 64), most, STEPS).astype(int))
    for size, before in zip(sizes, [0, *sizes]):
        keys = tf.range(before, size, dtype=tf.int64)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ge.lookup([table], [keys])[0])
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        planned = ge.plan(
            [feature], batches=[{"keys": [1, 2]}], keys={"keys": int(size)}, optimizer=optimizer
        )
        yield {
            "optimizer": name,
            "dim": dim,
            "keys": int(size),
            "planned bytes": round(planned.bytes_by_rank[0]["dram"]),
            "measured bytes": (measured := int(table.memory_bytes())),
            "ratio": round(planned.bytes_by_rank[0]["dram"] / measured, 3),
        }


def plot(path, about, rows):
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4.4))
    kinds = dict.fromkeys((row["optimizer"], row["dim"]) for row in rows)
    for place, (optimizer, dim) in enumerate(kinds):
        of_kind = [r for r in rows if (r["optimizer"], r["dim"]) == (optimizer, dim)]
        keys = [row["keys"] for row in of_kind]
        color = f"C{place}"
        label = f"{optimizer}, dim {dim}"
        axis.plot(keys, [row["planned bytes"] / 1e6 for row in of_kind], color=color, label=label)
        axis.plot(keys, [row["measured bytes"] / 1e6 for row in of_kind], "o", ms=3, color=color)
    axis.set(xscale="log", yscale="log", xlabel="keys", ylabel="MB in host memory")
    axis.set_title("lines: planned; dots: measured", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
