"""Steps of `fit` whose dense variables are updated by one op, beside one by one as stock does.

    python benchmarks/bench_step.py dense_update [--batch 2048] [--optimizers adam ...]

The model is a DLRM: 26 features of one id, dim 128, bottom MLP 13-512-256-128, dot interaction, top
MLP 1024-1024-512-256-1, 16 dense variables. Both models are in one process and take turns; tables
are updated by this library in both. Beside whole steps, the update of the dense variables alone, as
a `tf.function` of their gradients, and how many ops that function has. Medians, by the clock and of
CPU time; on a GPU if there is one.
"""

import statistics
import time

import numpy as np
import tensorflow as tf
from report import machine

import group_embedding as ge

NUM_FEATURES, NUM_DENSE, DIM = 26, 13, 128
OPTIMIZERS = {
    "sgd": lambda: tf.keras.optimizers.SGD(0.01),
    "momentum": lambda: tf.keras.optimizers.SGD(0.01, momentum=0.9),
    "adagrad": lambda: tf.keras.optimizers.Adagrad(0.01),
    "adam": lambda: tf.keras.optimizers.Adam(0.001),
    "adamw": lambda: tf.keras.optimizers.AdamW(0.001),
    "rmsprop": lambda: tf.keras.optimizers.RMSprop(0.001),
}
VERSIONS = {"one_by_one": False, "one_op": True}


def add_options(parser):
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=100_000, help="of each table")
    parser.add_argument("--steps", type=int, default=20, help="of one turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--optimizers", nargs="+", choices=OPTIMIZERS, default=["sgd", "adagrad", "adam", "adamw"]
    )


def make_optimizer(name, in_one_op):
    optimizer = ge.optimizers.wrap(OPTIMIZERS[name]())
    if not in_one_op:
        optimizer._ge_dense_rule = None  # as of an optimizer that no formula states
    return optimizer


def make_model(arguments, optimizer):
    features = [
        ge.FeatureConfig(f"f{i}", ge.TableConfig(f"t{i}", num_rows=arguments.rows, dim=DIM))
        for i in range(NUM_FEATURES)
    ]
    ids = {f"f{i}": tf.keras.Input([1], dtype="int64", name=f"f{i}") for i in range(NUM_FEATURES)}
    dense = tf.keras.Input([NUM_DENSE], name="numbers")
    bottom = mlp(dense, [512, 256, DIM])
    looked_up = ge.layers.GroupEmbedding(features, concat=True)(ids)
    interaction = Interaction()([bottom, looked_up])
    top = mlp(tf.keras.layers.Concatenate()([bottom, interaction]), [1024, 1024, 512, 256])
    model = tf.keras.Model({**ids, "numbers": dense}, tf.keras.layers.Dense(1)(top))
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return model


def mlp(x, widths):
    for width in widths:
        x = tf.keras.layers.Dense(width, activation="relu")(x)
    return x


class Interaction(tf.keras.layers.Layer):
    """The dot products of the vectors of all features."""

    def call(self, inputs):
        bottom, looked_up = inputs
        vectors = tf.concat([bottom, looked_up], 1)
        vectors = tf.reshape(vectors, [-1, NUM_FEATURES + 1, DIM])
        dots = tf.matmul(vectors, vectors, transpose_b=True)
        return tf.reshape(dots, [-1, (NUM_FEATURES + 1) ** 2])


def make_batches(arguments):
    data = np.random.default_rng(0)
    batch = {f"f{i}": data.integers(0, arguments.rows, [arguments.batch, 1]) for i in range(26)}
    batch["numbers"] = data.normal(size=[arguments.batch, NUM_DENSE]).astype(np.float32)
    labels = data.integers(0, 2, [arguments.batch, 1]).astype(np.float32)
    return tf.data.Dataset.from_tensors((batch, labels)).cache().repeat()


def make_update(variables, optimizer):
    """Makes so many updates of variables alone; and how many ops one has."""
    copies = [tf.Variable(variable) for variable in variables]
    gradients = [tf.constant(np.full(v.shape, 1e-3, np.float32)) for v in copies]
    optimizer.build(copies)

    @tf.function
    def update(*gradients):
        optimizer.apply_gradients(zip(gradients, copies))

    graph = update.get_concrete_function(*gradients).graph

    def run(steps):
        for _ in range(steps):
            update(*gradients)
        copies[0].numpy()  # waits for a GPU

    return run, len(graph.get_operations())


def ms_of(run, steps):
    """By the clock, and of CPU time in all threads."""
    begins = time.perf_counter(), time.process_time()
    run(steps)
    ends = time.perf_counter(), time.process_time()
    return [(end - begin) * 1e3 / steps for begin, end in zip(begins, ends)]


def measure(arguments, name):
    batches, runs, num_ops = make_batches(arguments), {}, {}
    for version, in_one_op in VERSIONS.items():
        model = make_model(arguments, make_optimizer(name, in_one_op))

        def fit(steps, model=model):
            model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0)

        runs["fit", version] = fit
        variables = [v for v in model.trainable_variables if v.shape[0] != arguments.rows]
        optimizer = make_optimizer(name, in_one_op)
        runs["update", version], num_ops[version] = make_update(variables, optimizer)
    times = {key: [] for key in runs}
    for run in runs.values():
        run(3)
    for _ in range(arguments.turns):
        for key, run in runs.items():
            times[key].append(ms_of(run, arguments.steps))
    row = {"optimizer": name, "batch": arguments.batch, "dense_variables": len(variables)}
    for (what, version), of_turns in times.items():
        by_clock, of_cpu = (round(statistics.median(times), 3) for times in zip(*of_turns))
        row |= {f"{what}_{version}_ms": by_clock, f"{what}_{version}_cpu_ms": of_cpu}
    return row | {f"update_{version}_ops": count for version, count in num_ops.items()}


def run(options):
    return machine() | vars(options), [measure(options, name) for name in options.optimizers]
