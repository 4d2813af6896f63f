"""Steps that are skipped, and rows in 16 bits."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from support.cases import optimizer_cases as cases

import group_embedding as ge


@pytest.mark.parametrize("clipnorm", [None, 1.0])
def test_nonfinite_steps_are_skipped(clipnorm):
    # Given a step whose loss is NaN between two others
    batches = cases.make_batches(3)
    batches.targets[1, 0, 0] = np.nan
    variables = cases.make_variables()
    optimizer = ge.optimizers.wrap(
        tf.keras.optimizers.Adagrad(0.1, clipnorm=clipnorm), skip_nonfinite=True
    )
    step = cases.make_step(optimizer, batches, variables)
    step(tf.constant(0))
    before, slots = cases.values_of(variables[:2]), cases.slots_of(optimizer)
    # When it is taken
    step(tf.constant(1))
    # Then no table has changed, nor its slot, and the next step changes them again
    cases.assert_same_bits(cases.values_of(variables[:2]), before)
    for slot, old in zip(cases.slots_of(optimizer), slots):
        if slot.shape in list(zip(cases.ROWS, cases.DIMS)):
            np.testing.assert_array_equal(slot, old)
    variables[2].assign(tf.ones([cases.WIDTH]))
    step(tf.constant(2))
    assert (cases.values_of(variables)[0] != before[0]).any()


def test_nonfinite_steps_are_taken_unless_told_otherwise():
    # Given, When the same with a plain wrapped optimizer
    batches = cases.make_batches(1)
    batches.targets[0] = np.nan
    values = cases.train_function(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)), batches)
    # Then the tables are spoilt, as by the stock optimizer
    assert not np.isfinite(values[0]).all()


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_tables_in_16_bits(dtype, name):
    # Given tables in 16 bits, whose slots stock has in 16 bits too
    batches = cases.make_batches(10)
    make = getattr(tf.keras.optimizers, name)
    expected = cases.train_function(ge.optimizers.wrap(make(0.05, weight_decay=0.01)), batches)
    variables = cases.make_variables(dtype)
    optimizer = ge.optimizers.wrap(make(0.05, weight_decay=0.01))
    # When they are trained
    values = cases.train_function(optimizer, batches, variables)
    # Then they follow those in 32 bits, as near as 16 bits are
    tolerance = 0.02 if dtype == tf.float16 else 0.15
    cases.assert_close(values, expected, tolerance)


@pytest.mark.parametrize("traced", [False, True])
def test_stochastic_rounding_keeps_small_updates(traced):
    # Given updates of a quarter of bfloat16's unit at 1
    def train(seed):
        table = tf.Variable(tf.ones([200, 8], tf.bfloat16))
        optimizer = ge.optimizers.wrap(
            tf.keras.optimizers.SGD(2.0**-10), stochastic_rounding_seed=seed
        )
        ids = tf.reshape(tf.range(200, dtype=tf.int64), [200, 1])

        def step():
            with tf.GradientTape() as tape:
                (output,) = ge.group_embedding_lookup([table], [ids])
                loss = -tf.reduce_sum(output)
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])

        step = tf.function(step) if traced else step
        for _ in range(16):
            step()
        return tf.cast(table, tf.float32).numpy()

    # When 16 of them are taken, rounded to nearest, and rounded at random
    nearest, rounded, again, other = train(None), train(5), train(5), train(6)
    # Then they are lost, or count on average; the same seed gives the same bits
    np.testing.assert_array_equal(nearest, np.ones([200, 8]))
    assert abs(rounded.mean() - (1 + 16 * 2.0**-10)) < 1e-3
    np.testing.assert_array_equal(rounded, again)
    assert (rounded != other).any()


@pytest.mark.parametrize("seed", ["a", 2**63, -(2**63) - 1, 1.5, True])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "v1"])
def test_a_seed_that_is_no_int_of_64_bits(seed, graph):
    # Given all that take a seed, in eager code or in a graph of TensorFlow 1
    own = ge.optimizers
    stock = tf.compat.v1.train.AdamOptimizer if graph else tf.keras.optimizers.Adam
    makers = [lambda **given: own.wrap(stock(), **given), own.LazyAdam, own.Lamb, own.RowwiseAdam,
              own.RowwiseAdagrad]  # fmt: skip

    # When they are given another one
    for make in makers:
        scope = tf.Graph().as_default() if graph else contextlib.nullcontext()
        with scope, pytest.raises(ValueError) as raised:
            make(stochastic_rounding_seed=seed)

        # Then the error names the argument and what was given
        assert "stochastic_rounding_seed to be an int of at least -9223" in str(raised.value)
        assert str(raised.value).endswith(f"got {seed!r}")


@pytest.mark.parametrize("seed", [-(2**63), -1, np.int32(7), 2**63 - 1])
def test_the_last_seeds(seed):
    # Given a table in 16 bits, and an optimizer with a seed
    table = tf.Variable(tf.ones([200, 8], tf.bfloat16))
    sgd = ge.optimizers.wrap(tf.keras.optimizers.SGD(2.0**-10), stochastic_rounding_seed=seed)

    # When it trains the table by less than half a unit
    sgd.apply_gradients([(tf.IndexedSlices(-tf.ones([200, 8], tf.bfloat16), range(200)), table)])

    # Then some numbers have moved
    assert 0 < (table.numpy() != 1).sum() < 200


def test_stochastic_rounding_in_a_session():
    # Given a graph of TensorFlow 1, whose optimizers count no steps
    def train():
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            table = tf.compat.v1.get_variable("t", initializer=tf.ones([50, 8], tf.bfloat16))
            (output,) = ge.group_embedding_lookup([table], [tf.range(50)])
            optimizer = ge.optimizers.wrap(
                tf.compat.v1.train.GradientDescentOptimizer(2.0**-10), stochastic_rounding_seed=3
            )
            step = optimizer.minimize(-tf.reduce_sum(output))
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(16):
                session.run(step)
            return session.run(tf.cast(table, tf.float32))

    # When it is trained twice
    first, second = train(), train()
    # Then small updates count, and the bits are the same
    assert abs(first.mean() - (1 + 16 * 2.0**-10)) < 3e-3
    np.testing.assert_array_equal(first, second)
