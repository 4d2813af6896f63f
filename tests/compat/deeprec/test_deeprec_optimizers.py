"""AdagradDecay, AdamAsync, AdamW and Ftrl as DeepRec defines them, against statements in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.compat.deeprec.keyed_optimizers import trains_keyed_tables

ROWS, DIMS, STEPS, SAMPLES, IDS = 12, (3, 16, 5), 24, 4, 3
v1 = tf.compat.v1
generator = np.random.default_rng(11)
ID = generator.integers(0, ROWS, [STEPS, SAMPLES, IDS])
ID[:, :, 0] %= 2  # some rows come in every step, others now and then
SEED = [generator.normal(size=[STEPS, SAMPLES, dim]).astype(np.float32) for dim in DIMS]
START = [generator.normal(size=[ROWS, dim]).astype(np.float32) for dim in DIMS]
DENSE = generator.normal(size=[STEPS, 2, 7]).astype(np.float32)  # gradients
RATE, BETA_1, BETA_2, DECAY = 0.05, 0.9, 0.99, 0.1
L1, L2, SHRINKAGE = 3.0, 0.2, 0.03


def adagrad_decay(x, s, g, t, keyed):
    a, n = s.setdefault("a", np.full(x.shape, 0.2)), s.setdefault("n", np.zeros(x.shape))

    def update(at):
        due = n[at] < t // 5  # t: the steps made, this one among them
        a[at] = np.where(due, np.maximum(a[at] * 0.3, 0.2), a[at])
        n[at] += due
        a[at] += g**2
        x[at] -= RATE * g / np.sqrt(a[at])

    return update


def adam(x, s, g, t, keyed):
    m, v = s.setdefault("m", np.zeros(x.shape)), s.setdefault("v", np.zeros(x.shape))

    def update(at):
        m[at] = BETA_1 * m[at] + (1 - BETA_1) * g
        v[at] = BETA_2 * v[at] + (1 - BETA_2) * g**2
        x[at] -= rate_at(t) * m[at] / (np.sqrt(v[at]) + 1e-8)

    return update


def sparse_rmsprop(x, s, g, t, keyed):
    if x.shape == (2, 7):
        return adam(x, s, g, t, keyed)
    m, v = s.setdefault("m", np.zeros(x.shape)), s.setdefault("v", np.zeros(x.shape))

    def update(at):
        v[at] = BETA_2 * v[at] + (1 - BETA_2) * g**2
        m[at] = BETA_1 * m[at] + RATE * g / np.sqrt(v[at] + 1e-8)
        x[at] -= m[at]

    return update


def adamw(x, s, g, t, keyed):
    step = adam(x, s, g, t, keyed)

    def update(at):
        x[at] -= DECAY * (rate_at(t) if keyed else 1.0) * x[at]
        step(at)

    return update


def ftrl(x, s, g, t, keyed):
    n, z = s.setdefault("n", np.full(x.shape, 0.1)), s.setdefault("z", np.zeros(x.shape))

    def update(at):
        moved = (np.sqrt(n[at] + g**2) - np.sqrt(n[at])) / RATE
        z[at] += g + 2 * SHRINKAGE * x[at] - moved * x[at]
        n[at] += g**2
        norm = np.linalg.norm(z[at], axis=1, keepdims=True) if keyed else np.abs(z[at])
        kept = np.maximum(0, 1 - L1 / np.maximum(norm, 1e-30))
        x[at] = -kept * z[at] / (np.sqrt(n[at]) / RATE + 2 * L2)

    return update


def rate_at(t):
    return RATE * np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t)


def make_adagrad_decay():
    return ge.optimizers.AdagradDecayOptimizer(
        RATE,
        v1.train.get_or_create_global_step(),
        initial_accumulator_value=0.2,
        accumulator_decay_step=5,
        accumulator_decay_rate=0.3,
    )


def make_ftrl(l1=L1):
    return trains_keyed_tables(v1.train.FtrlOptimizer)(
        RATE,
        l1_regularization_strength=l1,
        l2_regularization_strength=L2,
        l2_shrinkage_regularization_strength=SHRINKAGE,
    )


OPTIMIZERS = {
    "adagrad_decay": (make_adagrad_decay, adagrad_decay),
    "adam_async": (lambda: ge.optimizers.AdamAsyncOptimizer(RATE, BETA_1, BETA_2), adam),
    "adam_async_rmsprop": (
        lambda: ge.optimizers.AdamAsyncOptimizer(RATE, BETA_1, BETA_2, apply_sparse_rmsprop=True),
        sparse_rmsprop,
    ),
    "adamw": (lambda: ge.optimizers.AdamWOptimizer(DECAY, RATE, BETA_1, BETA_2), adamw),
    "ftrl": (make_ftrl, ftrl),
}


def expect(rule):
    """The result of training: three tables, the second of which is keyed, and a dense variable."""
    values = [start.astype(np.float64) for start in START] + [np.zeros([2, 7])]
    slots = [{} for _ in values]
    for step in range(STEPS):
        for i in range(3):
            gradient = np.zeros([ROWS, DIMS[i]])
            np.add.at(gradient, ID[step], np.repeat(SEED[i][step][:, None], IDS, axis=1))
            rows = np.unique(ID[step])
            rule(values[i], slots[i], gradient[rows], step + 1, keyed=i == 1)(rows)
        rule(values[3], slots[3], DENSE[step], step + 1, keyed=False)(slice(None))
    return values


class Model:
    """Three tables in one group, of which the second has keys, and a dense variable."""

    def __init__(self, make_optimizer, use_resource=True, **minimize):
        names = ("first", "keyed", "third")
        option = ge.EmbeddingVariableOption(
            init_option=ge.InitializerOption(initializer=START[1], default_value_dim=ROWS)
        )
        self.tables = [
            ge.get_embedding_variable(name, dim, ev_option=option)
            if name == "keyed"
            else v1.get_variable(name, initializer=start, use_resource=use_resource)
            for name, dim, start in zip(names, DIMS, START)
        ]
        self.dense = v1.get_variable("dense", initializer=np.zeros([2, 7], np.float32))
        self.at = v1.placeholder(tf.int32, [])
        ids = tf.RaggedTensor.from_uniform_row_length(
            tf.reshape(tf.gather(tf.constant(ID, tf.int64), self.at), [-1]), IDS
        )
        outputs = ge.group_embedding_lookup_sparse(self.tables, [ids] * 3, "sum")
        loss = tf.reduce_sum(self.dense * tf.gather(DENSE, self.at))
        for output, seed in zip(outputs, SEED):
            loss += tf.reduce_sum(output * tf.gather(seed, self.at))
        step = v1.train.get_or_create_global_step()
        decayed = {
            name: [{v.op.name: v for v in (*self.tables, self.dense)}[n] for n in names]
            for name, names in minimize.items()
        }
        self.train = make_optimizer().minimize(loss, global_step=step, **decayed)
        plain = tf.RaggedTensor.from_row_lengths(tf.range(ROWS, dtype=tf.int64), [1] * ROWS)
        self.rows = ge.group_embedding_lookup_sparse(self.tables, [plain] * 3, "sum")

    def values(self, session):
        return session.run([*self.rows, self.dense])


def run(make_optimizer, steps=range(STEPS), save=None, restore=None, **options):
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(make_optimizer, **options)
        session.run(v1.global_variables_initializer())
        saver = ge.Saver() if save or restore else None
        if restore:
            saver.restore(session, restore)
        for i in steps:
            session.run(model.train, {model.at: i})
        return saver.save(session, save) if save else model.values(session)


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equations(name, use_resource):
    # Given DeepRec's equations in float64
    make, rule = OPTIMIZERS[name]
    expected = expect(rule)
    # When the optimizer trains tables of rows and of keys in one group, and a dense variable
    values = run(make, use_resource=use_resource)
    # Then they agree
    for actual, wanted in zip(values, expected):
        np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_goes_on_from_its_checkpoint(name, tmp_path):
    make, _ = OPTIMIZERS[name]
    # Given an uninterrupted run, and one that is saved half way
    expected = run(make)
    path = run(make, range(STEPS // 2), save=str(tmp_path / "model.ckpt"))
    # When another graph restores it and goes on
    values = run(make, range(STEPS // 2, STEPS), restore=path)
    # Then it has the bits of the uninterrupted one
    for actual, wanted in zip(values, expected):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparse_gradients_of_variables_that_are_no_tables(name):
    # Given a vector, of which elements are looked up, each of which is a row for the rule
    make, rule = OPTIMIZERS[name]
    expected, slots = np.ones([6]), {}
    with tf.Graph().as_default(), v1.Session() as session:
        vector = v1.get_variable("vector", initializer=np.ones([6], np.float32))
        place = v1.placeholder(tf.int64, [3])
        loss = tf.reduce_sum(tf.gather(vector, place) * [1.0, 2.0, 3.0])
        train = make().minimize(loss, global_step=v1.train.get_or_create_global_step())
        session.run(v1.global_variables_initializer())
        # When one of them comes twice in a step, for the third time and more
        for t in range(1, 13):
            session.run(train, {place: [0, 4, 0]})
            rule(expected, slots, np.array([4.0, 2.0]), t, keyed=False)(np.array([0, 4]))
        values = session.run(vector)
    # Then its gradients are one, and what does not come stays
    np.testing.assert_allclose(values, expected, rtol=2e-5)


def test_adamw_shrinks_what_it_is_told_to():
    def make():
        return ge.optimizers.AdamWOptimizer(DECAY, 0.0)

    # Given a learning rate of nothing, so that weight decay alone moves what has no keys
    # When two of four variables are named
    values = run(make, range(1), decay_var_list=["first"])
    # Then those shrink, by rows that were looked up, and no other
    come = np.unique(ID[0])
    shrunk = np.ones([ROWS, 1])
    shrunk[come] -= DECAY
    np.testing.assert_allclose(values[0], START[0] * shrunk, rtol=1e-6)
    np.testing.assert_array_equal(values[2], START[2])


def test_adamw_takes_a_callable():
    # Given weight decays as a number and as a function
    numbers = [
        run(lambda decay=decay: ge.optimizers.AdamWOptimizer(decay, RATE), range(3))
        for decay in (DECAY, lambda: tf.constant(DECAY))
    ]
    # When both have trained, then they agree
    for number, function in zip(*numbers):
        np.testing.assert_array_equal(number, function)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"initial_accumulator_value": 0.0}, "initial_accumulator_value: expected a positive"),
        ({"accumulator_decay_step": 0}, "accumulator_decay_step: expected a positive number"),
        ({"accumulator_decay_rate": 1.0}, "accumulator_decay_rate: expected a number between"),
    ],
)
def test_refused_numbers(arguments, message):
    with pytest.raises(ValueError, match=message):
        ge.optimizers.AdagradDecayOptimizer(0.1, tf.Variable(0), **arguments)


def test_rows_of_keys_vanish_as_a_whole_under_ftrl():
    # Given DeepRec's Ftrl, and TensorFlow's, which `wrap` makes of it
    of_deeprec = run(lambda: make_ftrl(l1=50.0))[1]
    wrapped = run(lambda: ge.optimizers.wrap(make_ftrl()))[1]
    # When both have trained a table of keys / Then under the first a row is zero as a whole or in
    # no element, and under the second elements are zero for themselves
    zeros = [set((rows == 0).sum(axis=1)) for rows in (of_deeprec, wrapped)]
    assert zeros[0] == {0, DIMS[1]}
    assert zeros[1] - {0, DIMS[1]}
