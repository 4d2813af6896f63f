"""Rules that move only the rows that were looked up, against NumPy statements in float64."""

import numpy as np
import pytest
import tensorflow as tf
from support.oracles.rules import OWN

import group_embedding as ge

ROWS, DIM, STEPS, SAMPLES, IDS = 30, 5, 100, 8, 3
keras, v1 = tf.keras.optimizers, tf.compat.v1.train

generator = np.random.default_rng(5)
ID = generator.zipf(1.4, [STEPS, SAMPLES, IDS]) % ROWS
WEIGHT = generator.uniform(0.5, 2, ID.shape).astype(np.float32)
SEED = generator.normal(size=[STEPS, SAMPLES, DIM]).astype(np.float32)
START = generator.normal(size=[ROWS, DIM]).astype(np.float32)
RATE, BETA_1, BETA_2 = 0.01, 0.9, 0.999


def gradient_at(step):
    """Looked-up rows, and the sums of their gradients; the loss is linear in the table."""
    gradient = np.zeros([ROWS, DIM])
    contributions = WEIGHT[step][..., None].astype(np.float64) * SEED[step][:, None, :]
    np.add.at(gradient, ID[step], contributions)
    rows = np.unique(ID[step])
    return rows, gradient[rows]


def state(prototype, value=0.0):
    return np.full(prototype.shape, value)


def adam(x, t, rows, g, s, amsgrad=False, decay=0.0):
    m, v, w = s.setdefault("m", state(x)), s.setdefault("v", state(x)), s.setdefault("w", state(x))
    x[rows] -= RATE * decay * x[rows]
    m[rows] = BETA_1 * m[rows] + (1 - BETA_1) * g
    v[rows] = BETA_2 * v[rows] + (1 - BETA_2) * g**2
    w[rows] = np.maximum(w[rows], v[rows]) if amsgrad else v[rows]
    rate = RATE * np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t)
    x[rows] -= rate * m[rows] / (np.sqrt(w[rows]) + 1e-7)


def momentum(x, t, rows, g, s):
    m = s.setdefault("m", state(x))
    m[rows] = 0.9 * m[rows] - RATE * g
    x[rows] += m[rows]


def rmsprop(x, t, rows, g, s):
    v, a = s.setdefault("v", state(x)), s.setdefault("a", state(x))
    v[rows] = 0.9 * v[rows] + 0.1 * g**2
    a[rows] = 0.9 * a[rows] + 0.1 * g
    x[rows] -= RATE * g / np.sqrt(v[rows] - a[rows] ** 2 + 1e-3)


def rule_of(own):
    """The rule of an optimizer of ge.optimizers, in the form of those above."""

    def rule(x, t, rows, g, s):
        slots = s.setdefault("slots", own.make_slots(x.shape))
        own.step_of_rows(x, rows, g, slots, own.hyper(RATE, t))

    return rule


def make(name):
    return getattr(ge.optimizers, name)(RATE, **OWN[name].arguments)


def expect(rule, **options):
    x, slots = START.astype(np.float64), {}
    for step in range(STEPS):
        rule(x, step + 1, *gradient_at(step), slots, **options)
    return x


def loss_of(table, step):
    ids = tf.RaggedTensor.from_row_splits(
        tf.reshape(tf.gather(tf.constant(ID), step), [-1]), range(0, SAMPLES * IDS + 1, IDS)
    )
    weights = ids.with_values(tf.reshape(tf.gather(tf.constant(WEIGHT), step), [-1]))
    (output,) = ge.group_embedding_lookup_sparse([table], [ids], "sum", sp_weights=[weights])
    return tf.reduce_sum(output * tf.gather(tf.constant(SEED), step))


def train(optimizer):
    table = tf.Variable(START)

    @tf.function
    def step(i):
        with tf.GradientTape() as tape:
            loss = loss_of(table, i)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    for i in range(STEPS):
        step(tf.constant(i))
    return table.numpy()


def train_session(make):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.compat.v1.get_variable("t", initializer=START)
        place = tf.compat.v1.placeholder(tf.int32, [])
        step = make().minimize(loss_of(table, place))
        session.run(tf.compat.v1.global_variables_initializer())
        for i in range(STEPS):
            session.run(step, {place: i})
        return session.run(table)


@pytest.mark.parametrize(
    "make, rule, options",
    [
        (lambda: ge.optimizers.wrap(keras.Adam(RATE)), adam, {}),
        (lambda: ge.optimizers.wrap(keras.Adam(RATE, amsgrad=True)), adam, {"amsgrad": True}),
        (lambda: ge.optimizers.wrap(keras.AdamW(RATE, weight_decay=0.1)), adam, {"decay": 0.1}),
        (lambda: ge.optimizers.LazyAdam(RATE), adam, {}),
        (lambda: ge.optimizers.wrap(keras.SGD(RATE, momentum=0.9)), momentum, {}),
        (
            lambda: ge.optimizers.wrap(keras.RMSprop(RATE, centered=True, epsilon=1e-3)),
            rmsprop,
            {},
        ),
        *((lambda name=name: make(name), rule_of(own), {}) for name, own in OWN.items()),
    ],
    ids=["adam", "amsgrad", "adamw", "LazyAdam", "momentum", "rmsprop", *OWN],
)
def test_keras_optimizers(make, rule, options):
    # Given a rule stated in float64
    expected = expect(rule, **options)
    # When an optimizer trains a table by it
    values = train(make())
    # Then they agree
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make, rule",
    [
        (lambda: ge.optimizers.wrap(v1.AdamOptimizer(RATE, epsilon=1e-7)), adam),
        (lambda: ge.optimizers.LazyAdam(RATE), adam),
        *((lambda name=name: make(name), rule_of(own)) for name, own in OWN.items()),
    ],
    ids=["adam", "LazyAdam", *OWN],
)
def test_optimizers_in_a_session(make, rule):
    # Given a rule stated in float64
    expected = expect(rule)
    # When an optimizer trains a table by it, in a graph of TensorFlow 1
    values = train_session(make)
    # Then they agree
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)


def test_excluded_tables_do_not_decay():
    # Given two tables, of which one is excluded from weight decay, and a third that nobody looks up
    tables = [tf.Variable(tf.ones([4, 2]), name=name) for name in ("decays", "stays", "unused")]
    optimizer = ge.optimizers.wrap(keras.SGD(0.1, weight_decay=0.5))
    optimizer.exclude_from_weight_decay(var_names=["stays"])
    ids = tf.ragged.constant([[0], [2]], dtype=tf.int64)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            outputs = ge.group_embedding_lookup_sparse(tables[:2], [ids, ids], "sum")
            loss = tf.reduce_sum(outputs[0]) + tf.reduce_sum(outputs[1])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables[:2]), tables[:2]))

    # When a step is taken
    step()
    # Then looked-up rows of the first shrink, and no other rows
    np.testing.assert_allclose(tables[0][:, 0], [0.85, 1, 0.85, 1], rtol=1e-6)
    np.testing.assert_allclose(tables[1][:, 0], [0.9, 1, 0.9, 1], rtol=1e-6)
    np.testing.assert_array_equal(tables[2], np.ones([4, 2]))
