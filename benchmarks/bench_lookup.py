"""Stock TensorFlow beside the group lookup, through TensorFlow, on the CPU or on a GPU.

    python benchmarks/bench_lookup.py [--features 10 100] [--onehot26] [--json FILE] [--plot PNG]

Per case, medians over runs by turns of a traced function over the same tables and ids:

* forward: all lookups (`safe_embedding_lookup_sparse` on each feature; grouped: one call);
* gradients: forward, and the gradients of all tables;
* step: forward, gradients and Adagrad's update of all tables, by the stock Keras optimizer.

On a GPU each case runs twice: with ids that start in host memory, and with ids on the device; and
each call is timed two ways: waited for, and in a row of calls as a training loop makes them.
"""

import argparse
import gc
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import numpy as np
import report
import tensorflow as tf

import group_embedding as ge

OPTIMIZERS = {"adagrad": tf.keras.optimizers.Adagrad, "adam": tf.keras.optimizers.Adam}
STAGES = ("forward", "gradients", *OPTIMIZERS)
CALLS_PER_TURN = 10


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--features", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--hotness", type=int, default=5)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--rows", type=int, default=10_000, help="of each table")
    parser.add_argument("--onehot26", action="store_true", help="26 x 65536 x 1, dim 128, instead")
    parser.add_argument("--host", action="store_true", help="1, 26, 300 x 2 x 1: the host's cost")
    parser.add_argument("--packed", action="store_true", help="grouped: ids packed beforehand")
    parser.add_argument("--stages", nargs="*", default=STAGES, choices=STAGES)
    parser.add_argument("--seconds", type=float, default=4.0, help="per stage, of both")
    parser.add_argument("--json", default=None)
    parser.add_argument("--plot", default=None)
    return parser.parse_args()


class Case:
    """Tables and ids of one size, and the functions that are timed."""

    def __init__(self, features, batch, hotness, dim, rows, device, ids_on, is_packed):
        generator = np.random.default_rng(0)
        samples = np.repeat(np.arange(batch), hotness)
        columns = np.tile(np.arange(hotness), batch)
        indices = np.stack([samples, columns], axis=1).astype(np.int64)
        with tf.device(device):
            self.tables = [
                tf.Variable(tf.random.uniform([rows, dim], -1, 1)) for _ in range(features)
            ]
            self.seeds = tf.random.normal([batch, dim])
        with tf.device(device if ids_on == "device" else "CPU:0"):
            self.ids = [
                tf.SparseTensor(
                    tf.identity(tf.constant(indices)),
                    tf.identity(tf.constant(generator.integers(0, rows, batch * hotness))),
                    tf.constant([batch, hotness], tf.int64),
                )
                for _ in range(features)
            ]
            self.grouped_ids = self.ids
            if is_packed:
                self.grouped_ids = ge.route_ids(self.tables, self.ids, "mean")
        self.device, self.ids_on = device, ids_on

    def stock(self):
        return [
            tf.nn.safe_embedding_lookup_sparse(table, one, combiner="mean")
            for table, one in zip(self.tables, self.ids)
        ]

    def grouped(self):
        return ge.group_embedding_lookup_sparse(self.tables, self.grouped_ids, "mean")

    def stage(self, name, look_up, wrap=lambda optimizer: optimizer):
        """The timed function of a stage; an optimizer's slots live as long as it."""
        seeds = [self.seeds] * len(self.tables)

        def gradients():
            with tf.GradientTape() as tape:
                outputs = look_up()
            return outputs, tape.gradient(outputs, self.tables, output_gradients=seeds)

        def forward_and_gradients():
            outputs, slices = gradients()
            return outputs + [one.values for one in slices]

        def step():
            outputs, slices = gradients()
            optimizer.apply_gradients(zip(slices, self.tables))
            return outputs

        if name == "forward":
            return self._traced(look_up)
        if name == "gradients":
            return self._traced(forward_and_gradients)
        optimizer = wrap(OPTIMIZERS[name](0.01))
        optimizer.build(self.tables)
        return self._traced(step)

    def _traced(self, function):
        @tf.function(autograph=False)
        def traced():
            # All results are returned: control dependencies on them would be optimized away.
            with tf.device(self.device):
                return function()

        return traced


def median_ms(stock, grouped, seconds):
    """[(alone, in a row)] of two functions: medians of a call waited for, and of a call in a row.

    The two run by turns: what else the machine does hits both. A turn is several calls, each waited
    for, and on a GPU then as many in a row without waiting, as a training loop makes them. The
    first call of a turn, which finds the caches full of the other side's data, is not counted.
    """
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    times = {stock: ([], []), grouped: ([], [])}
    for run in times:
        for _ in range(5):
            calls_ms(run, 1)
    gc.collect()
    gc.disable()  # as timeit does
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times[grouped][0]) < 2 * CALLS_PER_TURN:
        for run, (alone, in_a_row) in times.items():
            calls_ms(run, 1)
            alone += [calls_ms(run, 1) for _ in range(CALLS_PER_TURN)]
            if on_gpu:
                in_a_row.append(calls_ms(run, CALLS_PER_TURN))
    gc.enable()
    return [
        (statistics.median(alone), statistics.median(in_a_row or alone))
        for alone, in_a_row in times.values()
    ]


def calls_ms(run, count):
    """Milliseconds per call of `count` calls in a row, until the last result is there."""
    begin = time.perf_counter()
    for _ in range(count):
        run()
    tf.test.experimental.sync_devices()
    return (time.perf_counter() - begin) * 1e3 / count


def measure(case, stages, features, shape, seconds):
    """One row of the table per stage."""
    for stage in stages:
        stock = case.stage(stage, case.stock)
        grouped = case.stage(stage, case.grouped, ge.optimizers.wrap)
        ops = grouped.get_concrete_function().graph.get_operations()
        stock_ops = stock.get_concrete_function().graph.get_operations()
        (stock_ms, stock_row_ms), (grouped_ms, grouped_row_ms) = median_ms(stock, grouped, seconds)
        yield {
            "features": features,
            "shape": shape,
            "ids on": case.ids_on,
            "stage": stage,
            "stock_ms": round(stock_ms, 3),
            "grouped_ms": round(grouped_ms, 3),
            "speedup": round(stock_ms / grouped_ms, 2),
            "stock_in_a_row_ms": round(stock_row_ms, 3),
            "grouped_in_a_row_ms": round(grouped_row_ms, 3),
            "speedup_in_a_row": round(stock_row_ms / grouped_row_ms, 2),
            "grouped_us_per_feature": round(1e3 * grouped_ms / features, 2),
            "stock_ops": len(stock_ops),
            "grouped_ops": len(ops),
        }


def plot(path, about, rows):
    """Milliseconds of each case, stock and grouped, one panel per stage."""
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys((row["shape"], row["ids on"]) for row in rows))
    stages = list(dict.fromkeys(row["stage"] for row in rows))
    places = np.arange(len(cases))
    figure, axes = plt.subplots(
        1, len(stages), figsize=(17, 1.6 + 0.75 * len(cases)), sharex=True, sharey=True
    )
    for axis, stage in zip(axes, stages):
        chosen = [row for row in rows if row["stage"] == stage]
        for offset, side, color in ((-0.2, "stock", "#999999"), (0.2, "grouped", "#2a6fbb")):
            bars = axis.barh(
                places + offset, [row[f"{side}_ms"] for row in chosen], 0.4, label=side, color=color
            )
            speedups = ["" if side == "stock" else f"  {row['speedup']:.1f}x" for row in chosen]
            labels = [f"{row[f'{side}_ms']:,.4g} ms{s}" for row, s in zip(chosen, speedups)]
            axis.bar_label(bars, labels, fontsize=8, padding=2)
        axis.set_yticks(places, [f"{shape}\n{ids} ids" for shape, ids in cases])
        axis.set_xscale("log")
        axis.margins(x=0.35)
        axis.set_title(stage)
        axis.set_xlabel("milliseconds of a call that is waited for (median)")
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper right")
    figure.suptitle(f"{about['device']}, TensorFlow {about['tensorflow']}, {about['date']}")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def cases_of(arguments):
    """(features, batch, hotness, dim, rows) of every case asked for."""
    if arguments.host:
        yield from ((features, 2, 1, arguments.dim, arguments.rows) for features in (1, 26, 300))
    for features in [] if arguments.host else arguments.features:
        yield features, arguments.batch, arguments.hotness, arguments.dim, arguments.rows
    if arguments.onehot26:
        yield 26, 65536, 1, 128, 1_000_000


def main():
    arguments = parse_arguments()
    gpus = tf.config.list_physical_devices("GPU")
    about = report.machine() | {
        "tensorflow": tf.__version__,
        "device": tf.config.experimental.get_device_details(gpus[0])["device_name"]
        if gpus
        else f"CPU, {len(os.sched_getaffinity(0))} cores",
    }
    print(about)
    rows = []
    for features, batch, hotness, dim, table_rows in cases_of(arguments):
        for ids_on in ["host", "device"] if gpus else ["host"]:
            device = "GPU:0" if gpus else "CPU:0"
            case = Case(features, batch, hotness, dim, table_rows, device, ids_on, arguments.packed)
            shape = f"{features} x {batch} x {hotness}, dim {dim}"
            for row in measure(case, arguments.stages, features, shape, arguments.seconds):
                rows.append(row)
                print(row, flush=True)
                if arguments.json:
                    report.write_json(arguments.json, about, rows)
            del case
    report.print_table(rows)
    report.write_results(arguments, about, rows, plot)


if __name__ == "__main__":
    main()
