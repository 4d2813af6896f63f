"""A small model that the tests of optimizers train: two tables of two dims, three lookups with
duplicates and weights, and a dense variable behind them."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

import group_embedding as ge

ROWS, DIMS = (40, 9), (6, 3)
TABLE_OF_FEATURE = (0, 1, 0)
COMBINERS = ("mean", "sum", "sqrtn")
WIDTH = sum(DIMS[table] for table in TABLE_OF_FEATURE)
SAMPLES, IDS = 10, 4


class Batches(NamedTuple):
    """The batches of all steps; the first axis is the step."""

    ids: list  # per feature [steps, SAMPLES, IDS], -1: none
    weights: list  # the same shape
    targets: np.ndarray  # [steps, SAMPLES, WIDTH]

    def at(self, step):
        """The batch of one step, as tensors."""
        ids, weights = (
            tf.unstack(tf.gather(np.stack(of, axis=1), step), len(TABLE_OF_FEATURE))
            for of in (self.ids, self.weights)
        )
        return ids, weights, tf.gather(self.targets, step)

    def without(self, step):
        """All batches but the one of that step."""
        ids, weights = ([np.delete(of, step, 0) for of in each] for each in self[:2])
        return Batches(ids, weights, np.delete(self.targets, step, 0))


def make_batches(steps, every_row=False, seed=7):
    """Skewed ids, some missing. `every_row`: each row of each table is looked up at every step."""
    generator = np.random.default_rng(seed)
    ids, weights = [], []
    for table in TABLE_OF_FEATURE:
        drawn = generator.zipf(1.3, [steps, SAMPLES, IDS]) % ROWS[table]
        drawn[generator.uniform(size=drawn.shape) < 0.2] = -1
        if every_row:
            drawn[:] = np.resize(np.arange(ROWS[table]), [SAMPLES, IDS])
        ids.append(drawn.astype(np.int64))
        weights.append(generator.uniform(0.5, 2, drawn.shape).astype(np.float32))
    targets = generator.normal(size=[steps, SAMPLES, WIDTH]).astype(np.float32)
    return Batches(ids, weights, targets)


def initial_values():
    generator = np.random.default_rng(3)
    return [generator.normal(size=shape).astype(np.float32) for shape in zip(ROWS, DIMS)]


def make_variables(dtype=tf.float32):
    """The two tables, of `dtype`, then the dense variable."""
    tables = [tf.cast(value, dtype) for value in initial_values()]
    names = ("first", "second", "dense")
    return [tf.Variable(v, name=n) for v, n in zip([*tables, tf.ones([WIDTH])], names)]


def to_sparse(dense):
    """Tensors [SAMPLES, IDS] -> SparseTensors with every place, so that -1 is a negative id."""
    places = tf.constant(np.indices([SAMPLES, IDS]).reshape(2, -1).T)
    shape = tf.constant([SAMPLES, IDS], tf.int64)
    return [tf.SparseTensor(places, tf.reshape(one, [-1]), shape) for one in dense]


def look_up(variables, ids, weights):
    return ge.group_embedding_lookup_sparse(
        [variables[table] for table in TABLE_OF_FEATURE],
        to_sparse(ids),
        COMBINERS,
        sp_weights=to_sparse(weights),
    )


def loss_of(variables, batch):
    ids, weights, targets = batch
    output = tf.concat(look_up(variables, ids, weights), axis=-1)
    error = tf.cast(output, tf.float32) * tf.cast(variables[2], tf.float32) - targets
    return tf.reduce_sum(error**2) / SAMPLES


def train_function(optimizer, batches, variables=None, change=None):
    """Trains in a `tf.function`; `change` may replace gradients. Returns the final values."""
    variables = variables or make_variables()
    step = make_step(optimizer, batches, variables, change)
    for i in range(len(batches.targets)):
        step(tf.constant(i))
    return values_of(variables)


def make_step(optimizer, batches, variables, change=None):
    if hasattr(optimizer, "build"):  # else the function is traced twice, the first time to do this
        optimizer.build(variables)

    @tf.function(autograph=False)
    def step(i):
        take_step(optimizer, batches, variables, i, change)

    return step


def train_eager(optimizer, batches, variables=None, change=None):
    variables = variables or make_variables()
    for i in range(len(batches.targets)):
        take_step(optimizer, batches, variables, i, change)
    return values_of(variables)


def take_step(optimizer, batches, variables, i, change=None):
    with tf.GradientTape() as tape:
        loss = loss_of(variables, batches.at(i))
    gradients = tape.gradient(loss, variables)
    if change is not None:
        gradients = change(gradients)
    optimizer.apply_gradients(zip(gradients, variables))


def train_session(make_optimizer, batches, use_resource=True, device=None):
    """Trains in a graph of TensorFlow 1."""
    with tf.Graph().as_default(), tf.device(device), tf.compat.v1.Session() as session:
        start = [*initial_values(), np.ones([WIDTH], np.float32)]
        variables = [
            tf.compat.v1.get_variable(n, initializer=v, use_resource=use_resource)
            for n, v in zip(("first", "second", "dense"), start)
        ]
        place = tf.compat.v1.placeholder(tf.int32, [])
        train = make_optimizer().minimize(loss_of(variables, batches.at(place)))
        session.run(tf.compat.v1.global_variables_initializer())
        for i in range(len(batches.targets)):
            session.run(train, {place: i})
        return session.run(variables)


def values_of(variables):
    return [tf.cast(variable, tf.float32).numpy() for variable in variables]


def slots_of(optimizer):
    """All floating-point state of a Keras optimizer, by name."""
    variables = optimizer.variables
    variables = variables() if callable(variables) else variables
    return [tf.convert_to_tensor(v).numpy() for v in variables if tf.as_dtype(v.dtype).is_floating]


def live_ops(graph):
    """The types of the ops that a function runs: those with an effect, what it returns, and what
    they need."""
    waiting = [op for op in graph.get_operations() if op.op_def.is_stateful]
    waiting += [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    found = set()
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return [op.type for op in found]


def step_ops(step):
    return live_ops(step.get_concrete_function(tf.constant(0)).graph)


def assert_close(actual, expected, tolerance=1e-5):
    for i, (a, b) in enumerate(zip(actual, expected)):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=f"variable {i}")


def assert_same_bits(actual, expected):
    for i, (a, b) in enumerate(zip(actual, expected)):
        np.testing.assert_array_equal(a, b, err_msg=f"variable {i}")
