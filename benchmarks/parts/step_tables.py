"""The host's time of a training step by how many tables it has.

    python benchmarks/bench_step.py tables [--tables 1 3 30 300 1000]

A step looks up one id of each table (1,000 rows, dim 8) for two samples, whose ids are packed
beforehand, and updates the tables by a wrapped Adagrad: next to nothing is left but the host's work
for a call. Ways to run it:

    function   a plain `tf.function`
    fit        `fit` of a `tf.keras.Model` with a `GroupEmbedding` layer
    compiled   `training.make_step`, a step a call
    session    a graph of TensorFlow 1
    captures   a `tf.function` that captures three variables a table and uses none of them

All numbers of tables take turns in one process. Milliseconds a step: medians of the turns' medians,
by the clock; and of CPU time in all threads.
"""

import statistics
import time

import numpy as np
import tensorflow as tf
from report import machine

import group_embedding as ge

ROWS, DIM, SAMPLES = 1000, 8, 2


def add_options(parser):
    parser.add_argument("--tables", nargs="+", type=int, default=[1, 3, 30, 300, 1000])
    parser.add_argument("--ways", nargs="+", choices=CALLERS, default=list(CALLERS))
    parser.add_argument("--steps", type=int, default=50, help="of one turn")
    parser.add_argument("--turns", type=int, default=7)


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


def by_compiled_step(num_tables):
    return by_function(num_tables, ge.training.make_step)


class StepTimes(tf.keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.times = []

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter())


def by_fit(num_tables):
    features = [
        ge.FeatureConfig(f"f{t}", ge.TableConfig(f"table_{t}", num_rows=ROWS, dim=DIM), "sum")
        for t in range(num_tables)
    ]
    layer = ge.layers.GroupEmbedding(features, concat=True)
    model = SumOfVectors(layer)
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.01))
    model.compile(optimizer, "mse", jit_compile=False)
    ids = dict(zip((feature.name for feature in features), make_ids(num_tables)))
    packed = tf.data.Dataset.from_tensors((layer.route(ids), tf.zeros([SAMPLES, 1]))).repeat()

    def run(steps):
        clock = StepTimes()
        model.fit(packed, steps_per_epoch=steps + 1, verbose=0, callbacks=[clock])
        return clock.times

    return run


class SumOfVectors(tf.keras.Model):
    def __init__(self, layer):
        super().__init__()
        self._allow_non_tensor_positional_args = True  # of Keras 3: RoutedIds are no tensor
        self.layer = layer

    def call(self, inputs):
        return tf.reduce_sum(self.layer(inputs), 1, keepdims=True)


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
            ragged = [tf.RaggedTensor.from_row_splits(v, s) for v, s in zip(values, splits)]
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
    "fit": by_fit,
    "compiled": by_compiled_step,
    "session": by_session,
    "captures": by_captures,
}


def measure(arguments, way):
    runs = {tables: CALLERS[way](tables) for tables in arguments.tables}
    wall, cpu = {tables: [] for tables in runs}, {tables: [] for tables in runs}
    for run in runs.values():
        run(5)
    for _ in range(arguments.turns):
        for tables, run in runs.items():
            begin = time.process_time()
            times = np.array(run(arguments.steps))
            cpu[tables].append((time.process_time() - begin) / arguments.steps)
            wall[tables].append(float(np.median(np.diff(times))))
    return [
        {
            "way": way,
            "tables": tables,
            "ms": round(statistics.median(wall[tables]) * 1e3, 4),
            "least ms": round(min(wall[tables]) * 1e3, 4),
            "CPU ms": round(statistics.median(cpu[tables]) * 1e3, 4),
        }
        for tables in runs
    ]


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.5))
    for way in dict.fromkeys(row["way"] for row in rows):
        of_way = [row for row in rows if row["way"] == way]
        axis.plot([r["tables"] for r in of_way], [r["ms"] for r in of_way], marker="o", label=way)
    axis.set(xscale="log", yscale="log", xlabel="tables", ylabel="ms a step")
    axis.set_title(f"TensorFlow {about['tensorflow']}, {about['cpu']}", fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def run(options):
    rows = [row for way in options.ways for row in measure(options, way)]
    return machine() | {"tensorflow": tf.__version__} | vars(options), rows
