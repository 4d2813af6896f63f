"""The host's time of a training step by how many tables it has.

    python benchmarks/bench_step.py tables [--tables 1 3 30 300 1000]

A step looks up one id of each table (1,000 rows, dim 8) for two samples, whose ids are packed
beforehand, and updates the tables by a wrapped Adagrad: next to nothing is left but the host's work
for a call. Ways to run it:

    function   a plain `tf.function`
    single     the same with a handle for each variable, as a function of stock ops has
    fit        `fit` of a `tf.keras.Model` with a `GroupEmbedding` layer
    sparse     the same, of a SparseTensor for each feature, which no program packs
    model      `fit` of a `training.Model`, of SparseTensors
    model_ten  the same with steps_per_execution=10
    evaluate, predict, model_evaluate, model_predict
               the methods of `tf.keras.Model` and of `training.Model`, of SparseTensors
    compiled   `training.make_step`, a step a call
    ten        ten training steps of that model in a `tf.function` of an iterator
    stock_fit_ten, stock_ten
               the same two of a `tf.keras.Model` without tables: a dense layer of as many dense
               features, by a stock Adagrad. What Keras itself costs more than ten steps
    session    a graph of TensorFlow 1
    captures   a `tf.function` that captures three variables a table and uses none of them

All ways and numbers of tables take turns in one process, on a GPU where TensorFlow sees one. A row
has the milliseconds of a step: medians of the turns' medians, by the clock; and of CPU time in all
threads. And the microseconds that a table adds to that of the least number of tables.

`--beside FILE...` draws runs of other versions or devices, by their `--json`, into the picture.
"""

import json
import statistics
import time
import unittest.mock
from pathlib import Path

import numpy as np
import tensorflow as tf
from report import machine

import group_embedding as ge
from group_embedding.ops import variable_handles

ROWS, DIM, SAMPLES = 1000, 8, 2
TEN = 10  # steps of one call


def add_options(parser):
    parser.add_argument("--tables", nargs="+", type=int, default=[1, 3, 30, 300, 1000])
    parser.add_argument("--ways", nargs="+", choices=CALLERS, default=list(CALLERS))
    parser.add_argument("--steps", type=int, default=50, help="of one turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument(
        "--beside", nargs="+", default=[], help="figures of other runs, to be drawn"
    )


def make_ids(num_tables):
    ids = np.random.default_rng(0).integers(0, ROWS, [num_tables, SAMPLES, 1])
    return [tf.RaggedTensor.from_tensor(tf.constant(of_table)) for of_table in ids]


def make_tables(num_tables):
    start = np.random.default_rng(1).normal(size=[ROWS, DIM]).astype(np.float32)
    return [tf.Variable(start, name=f"table_{t}") for t in range(num_tables)]


def train(tables, routed, apply):
    """The step: a function of packed ids."""
    with tf.GradientTape() as tape:
        vectors = ge.group_embedding_lookup_sparse(tables, routed, "sum", concat=True)
        loss = tf.reduce_mean(tf.square(vectors))
    gradients = tape.gradient(loss, tables)
    apply(zip(gradients, tables))
    return loss


def timed(call):
    """A function of a number of steps: the times at which they began and the last one ended."""

    def run(steps):
        times = [time.perf_counter()]
        for _ in range(steps):
            call()
            times.append(time.perf_counter())
        return times

    return run


def by_function(num_tables, decorate=tf.function):
    tables = make_tables(num_tables)
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.01))
    optimizer.build(tables)
    routed = ge.route_ids(tables, make_ids(num_tables), "sum")

    def step(routed):
        return train(tables, routed, optimizer.apply_gradients)

    step = decorate(step)
    return timed(lambda: step(routed).numpy())


def by_single_handles(num_tables):
    with unittest.mock.patch.object(variable_handles, "_can_be_one", lambda handles: False):
        run = by_function(num_tables)
        run(1)  # makes the graph
    return run


def by_compiled_step(num_tables):
    return by_function(num_tables, ge.training.make_step)


class StepTimes(tf.keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.times = []

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter())

    on_test_batch_end = on_predict_batch_end = on_train_batch_end


def make_model(num_tables, base, is_packed, steps_a_call):
    """A compiled model, and a dataset of one batch without an end."""
    features = [
        ge.FeatureConfig(f"f{t}", ge.TableConfig(f"table_{t}", num_rows=ROWS, dim=DIM), "sum")
        for t in range(num_tables)
    ]
    layer = ge.layers.GroupEmbedding(features, concat=True)
    ids = dict(zip((feature.name for feature in features), make_ids(num_tables)))
    inputs = layer.route(ids) if is_packed else {n: i.to_sparse() for n, i in ids.items()}
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.01))
    return compiled(sum_of_vectors(base, layer), optimizer, steps_a_call), without_end(inputs)


def make_stock_model(num_features, steps_a_call):
    """Ten steps of stock layers in one call."""

    class OfDenseFeatures(tf.keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(DIM)

        def call(self, inputs):
            return self.dense(tf.concat(list(inputs.values()), 1))

    model = sum_of_vectors(tf.keras.Model, OfDenseFeatures())
    inputs = {f"f{f}": tf.ones([SAMPLES, 1]) for f in range(num_features)}
    return compiled(model, tf.keras.optimizers.Adagrad(0.01), steps_a_call), without_end(inputs)


def compiled(model, optimizer, steps_a_call):
    model.compile(optimizer, "mse", jit_compile=False, steps_per_execution=steps_a_call)
    return model


def without_end(inputs):
    return tf.data.Dataset.from_tensors((inputs, tf.zeros([SAMPLES, 1]))).repeat()


def by_fit(num_tables, base=tf.keras.Model, is_packed=True, steps_a_call=1, method="fit"):
    return fitting(*make_model(num_tables, base, is_packed, steps_a_call), steps_a_call, method)


def by_stock_fit_ten(num_features):
    return fitting(*make_stock_model(num_features, TEN), TEN)


def fitting(model, data, steps_a_call, method="fit"):
    steps_name = "steps_per_epoch" if method == "fit" else "steps"

    def run(steps):
        clock = StepTimes()
        calls = -(-steps // steps_a_call) + 1
        options = {steps_name: calls * steps_a_call, "verbose": 0, "callbacks": [clock]}
        getattr(model, method)(data, **options)
        return clock.times

    return run


def by_fit_of_sparse(num_tables):
    return by_fit(num_tables, is_packed=False)


def by_model(num_tables):
    return by_fit(num_tables, ge.training.Model, is_packed=False)


def by_model_ten(num_tables):
    return by_fit(num_tables, ge.training.Model, is_packed=False, steps_a_call=TEN)


def by_method(method, base):
    """`evaluate` or `predict` of SparseTensors."""
    return lambda num_tables: by_fit(num_tables, base, is_packed=False, method=method)


def by_ten(num_tables):
    model, data = make_model(num_tables, ge.training.Model, is_packed=False, steps_a_call=1)
    return ten_a_call(ge.training.make_step(model.train_step), data)


def by_stock_ten(num_features):
    model, data = make_stock_model(num_features, steps_a_call=1)
    return ten_a_call(model.train_step, data)


def ten_a_call(step, data):
    @tf.function
    def ten_steps(iterator):
        return [step(next(iterator)) for _ in range(TEN)]

    iterator = iter(data)
    call = timed(lambda: ten_steps(iterator)[-1]["loss"].numpy())
    return lambda steps: call(-(-steps // TEN))


def sum_of_vectors(base, layer):
    class SumOfVectors(base):
        def __init__(self):
            super().__init__()
            self._allow_non_tensor_positional_args = True  # of Keras 3: RoutedIds are no tensor
            self.layer = layer

        def call(self, inputs):
            return tf.reduce_sum(self.layer(inputs), 1, keepdims=True)

    return SumOfVectors()


def by_session(num_tables):
    ids = make_ids(num_tables)
    graph = tf.Graph()
    with graph.as_default():
        tables = [
            tf.compat.v1.get_variable(
                f"table_{t}", [ROWS, DIM], use_resource=True, initializer=tf.zeros_initializer()
            )
            for t in range(num_tables)
        ]
        splits = [i.row_splits.numpy() for i in ids]
        values = [i.values.numpy() for i in ids]

        def route(_):
            pairs = zip(values, splits)
            ragged = [tf.RaggedTensor.from_row_splits(v, s, validate=False) for v, s in pairs]
            return ge.route_ids(tables, ragged, "sum")

        packed = tf.data.Dataset.from_tensors(0).map(route).cache().repeat()
        routed = tf.compat.v1.data.make_one_shot_iterator(packed).get_next()
        vectors = ge.group_embedding_lookup_sparse(tables, routed, "sum", concat=True)
        loss = tf.reduce_mean(tf.square(vectors))
        optimizer = ge.optimizers.wrap(tf.compat.v1.train.AdagradOptimizer(0.01))
        update = optimizer.minimize(loss)
        session = tf.compat.v1.Session(graph=graph)
        session.run(tf.compat.v1.global_variables_initializer())
        return timed(session.make_callable([loss, update]))


def by_captures(num_tables):
    variables = [tf.Variable(tf.zeros([ROWS, DIM])) for _ in range(3 * num_tables)]

    @tf.function
    def call(x):
        for variable in variables:
            variable.handle  # noqa: B018
            tf.raw_ops.VariableShape(input=variable.handle)
        return x + 1.0

    x = tf.constant(0.0)
    return timed(lambda: call(x).numpy())


CALLERS = {
    "function": by_function,
    "single": by_single_handles,
    "fit": by_fit,
    "sparse": by_fit_of_sparse,
    "model": by_model,
    "model_ten": by_model_ten,
    "evaluate": by_method("evaluate", tf.keras.Model),
    "model_evaluate": by_method("evaluate", ge.training.Model),
    "predict": by_method("predict", tf.keras.Model),
    "model_predict": by_method("predict", ge.training.Model),
    "compiled": by_compiled_step,
    "ten": by_ten,
    "stock_fit_ten": by_stock_fit_ten,
    "stock_ten": by_stock_ten,
    "session": by_session,
    "captures": by_captures,
}


def measure(arguments):
    keys = [(way, tables) for way in arguments.ways for tables in arguments.tables]
    runs = {key: CALLERS[key[0]](key[1]) for key in keys}
    wall, cpu = {key: [] for key in keys}, {key: [] for key in keys}
    for run in runs.values():
        run(5)
    for _ in range(arguments.turns):
        for key, run in runs.items():
            steps_a_call = TEN if key[0].endswith("ten") else 1
            begin = time.process_time()
            times = np.array(run(arguments.steps))
            steps = (len(times) - 1) * steps_a_call
            cpu[key].append((time.process_time() - begin) / steps)
            wall[key].append(float(np.median(np.diff(times))) / steps_a_call)
    return [row_of(way, tables, wall, cpu) for way, tables in keys]


def row_of(way, tables, wall, cpu):
    key, least = (way, tables), (way, min(of for other, of in wall if other == way))
    row = {"way": way, "tables": tables}
    for name, times in (("", wall), ("CPU ", cpu)):
        ms = {at: statistics.median(times[at]) * 1e3 for at in (key, least)}
        more = tables - least[1]
        row[f"{name}ms"] = round(ms[key], 4)
        row[f"{name}us a table"] = round((ms[key] - ms[least]) * 1e3 / more, 2) if more else None
    return row | {"least ms": round(min(wall[key]) * 1e3, 4)}


def plot(path, about, rows):
    """Draws a step by its number of tables, a panel for each run, and the CPU time that each of the
    most tables adds to a step of the least."""
    import matplotlib.pyplot as plt

    runs = [(about, rows)]
    for other in map(json.loads, map(Path.read_text, map(Path, about["beside"]))):
        runs.append((other["about"], other["rows"]))
    ways = list(dict.fromkeys(row["way"] for _, rows in runs for row in rows))
    colors = dict(zip(ways, plt.colormaps["tab10" if len(ways) <= 10 else "tab20"].colors))
    figure, axes = plt.subplots(1, len(runs) + 1, figsize=(4.2 * len(runs) + 4.5, 4.5))
    for axis, (about, rows) in zip(axes, runs):
        for way in dict.fromkeys(row["way"] for row in rows):
            points = [(row["tables"], row["ms"]) for row in rows if row["way"] == way]
            axis.plot(*zip(*points), marker="o", markersize=4, color=colors[way], label=way)
        axis.set(xscale="log", yscale="log", xlabel="tables", ylabel="ms a step")
        axis.set_title(_title(about), fontsize=9)
        axis.sharey(axes[0])
        axis.grid(alpha=0.3)
    ms = [row["ms"] for _, rows in runs for row in rows]
    axes[0].set_ylim(0.8 * min(ms), 1.25 * max(ms))
    axes[0].legend(fontsize=8)
    _plot_slopes(axes[-1], runs, ways)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _plot_slopes(axis, runs, ways):
    height = 0.8 / len(runs)
    for i, (about, rows) in enumerate(runs):
        most = {row["way"]: row["CPU us a table"] for row in rows}
        places = [at + height * (i - (len(runs) - 1) / 2) for at in range(len(ways))]
        values = [most.get(way) or 0 for way in ways]
        bars = axis.barh(places, values, 0.9 * height, label=_title(about))
        axis.bar_label(bars, [f" {v:.2f}" if v else "" for v in values], fontsize=7)
    axis.set_yticks(range(len(ways)), ways)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_xlabel("us of CPU time that a table adds")
    axis.legend(fontsize=7)
    axis.grid(axis="x", alpha=0.3)


def _title(about):
    return f"TensorFlow {about['tensorflow']}, {about['device'] or about['cpu']}"


def run(options):
    rows = measure(options)
    devices = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    about = {"tensorflow": tf.__version__, "device": next(devices, {}).get("device_name")}
    return machine() | about | vars(options), rows
