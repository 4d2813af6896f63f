"""Host time of the first call of a training step, by the number of its features.

Each feature has a table by row of its own; the step is a plain `tf.function` with a wrapped
Adagrad. Seconds of processor time:

* trace s: until the function's graph is made;
* first run s: of that graph, in which TensorFlow optimizes it;
* later run s: the same once more.

    python benchmarks/bench_step.py first_call [--features 100 1000] [--no-grappler]
"""

import sys
import time

import tensorflow as tf
from report import machine

import group_embedding as ge


def add_options(parser):
    parser.add_argument("--features", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--no-grappler", action="store_true", help="without TensorFlow's Grappler")


def make_step(num_features):
    """The step, and ids of two samples for each feature."""
    tables = [tf.Variable(tf.zeros([10, 4])) for _ in range(num_features)]
    splits = tf.constant([0, 2, 3], tf.int64)
    ids = [tf.RaggedTensor.from_row_splits([1, 2, 3], splits) for _ in tables]
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
    optimizer.build(tables)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            vectors = ge.group_embedding_lookup_sparse(tables, ids, "sum", concat=True)
            loss = tf.reduce_sum(vectors)
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    return step, ids


def measure(num_features):
    step, ids = make_step(num_features)
    seconds = [time.process_time()]
    step.get_concrete_function(ids)
    seconds.append(time.process_time())
    for _ in range(2):
        step(ids)
        seconds.append(time.process_time())
    names = ["trace s", "first run s", "later run s"]
    return {name: end - begin for name, begin, end in zip(names, seconds, seconds[1:])}


def run(options):
    if options.no_grappler:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    rows = []
    for count in options.features:
        print(f"{count} features ...", file=sys.stderr, flush=True)
        rows.append({"features": count, **measure(count)})
    return {**machine(), "tensorflow": tf.__version__, "grappler": not options.no_grappler}, rows
