"""The optimizers that `wrap` accepts, and the properties that its result keeps."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import IS_KERAS_3

keras, v1 = tf.keras.optimizers, tf.compat.v1.train


class MyAdam(keras.Adam):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.Nadam(),
        lambda: v1.AdagradDAOptimizer(0.1, tf.Variable(0, dtype=tf.int64)),
        lambda: MyAdam(),
        lambda: "nadam",
    ],
    ids=["Nadam", "AdagradDA", "subclass", "string"],
)
def test_unsupported_optimizers_are_refused(make):
    with pytest.raises(TypeError, match=r"tf.compat.v1.train.AdamOptimizer.*RMSprop.*got .*\w+"):
        ge.optimizers.wrap(make())


@pytest.mark.parametrize(
    "name, near", [("adgrad", "adagrad"), ("FTLR", "ftrl"), ("rms_prop", "rmsprop"), ("", None)]
)
def test_a_misspelt_name_is_refused_with_the_names_there_are(name, near):
    hint = f"; did you mean '{near}'[?]$" if near else "$"
    choices = "adadelta, adagrad, adam, adamax, adamw, ftrl, rmsprop, sgd"
    with pytest.raises(ValueError, match=f"the name of one: {choices}; got '{name}'{hint}"):
        ge.optimizers.wrap(name)


def test_wrapping_twice_is_refused():
    with pytest.raises(ValueError, match="expected a stock optimizer, got a wrapped .*SGD"):
        ge.optimizers.wrap(ge.optimizers.wrap(keras.SGD()))


@pytest.mark.parametrize("make", [lambda: keras.Adam(0.1), lambda: v1.AdamOptimizer(0.1)])
def test_wrapped_optimizer_is_still_the_stock_one(make):
    # Given an optimizer
    optimizer = make()
    stock = type(optimizer)
    config = optimizer.get_config() if isinstance(optimizer, keras.Optimizer) else None
    # When it is wrapped
    wrapped = ge.optimizers.wrap(optimizer)
    # Then it is the same object, of a class of the same name
    assert wrapped is optimizer and isinstance(wrapped, stock)
    assert (type(wrapped).__name__, type(wrapped).__module__) == (stock.__name__, stock.__module__)
    if config:
        assert wrapped.get_config() == config


def test_settings_belong_to_one_optimizer():
    # Given two wrapped optimizers of one class, one of which skips
    skips = ge.optimizers.wrap(keras.SGD(1.0), skip_nonfinite=True)
    does_not = ge.optimizers.wrap(keras.SGD(1.0))
    tables = [tf.Variable(tf.ones([2, 2])) for _ in range(2)]
    gradient = tf.IndexedSlices(tf.constant([[np.inf, 1.0]]), tf.constant([0]))
    # When both get an infinite gradient
    for optimizer, table in zip((skips, does_not), tables):
        optimizer.apply_gradients([(gradient, table)])
    # Then one table stays
    np.testing.assert_array_equal(tables[0], np.ones([2, 2]))
    assert not np.isfinite(tables[1]).all()


def test_dense_gradients_and_other_sparse_ones_get_the_stock_update():
    # Given a table with a dense gradient, and a variable of three axes with a sparse one
    def train(optimizer):
        table, cube = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([4, 2, 3]))
        slices = tf.IndexedSlices(tf.ones([2, 2, 3]), tf.constant([1, 1]), tf.constant([4, 2, 3]))
        for _ in range(3):
            optimizer.apply_gradients([(tf.ones([4, 2]), table), (slices, cube)])
        return table.numpy(), cube.numpy()

    # When a wrapped Adam and a stock one train them
    wrapped, stock = train(ge.optimizers.wrap(keras.Adam(0.1))), train(keras.Adam(0.1))
    # Then they are the same
    for a, b in zip(wrapped, stock):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ge.optimizers.wrap(keras.Adam(0.1, weight_decay=0.1)),
        lambda: ge.optimizers.wrap(v1.AdamOptimizer(0.1)),
        lambda: ge.optimizers.RowwiseAdagrad(0.1),
        *([] if IS_KERAS_3 else [lambda: ge.optimizers.wrap(keras.legacy.Adam(0.1))]),
    ],
)
def test_mirrored_strategy(make):
    # Given a strategy with one replica, and the same model without
    def train(strategy):
        with strategy.scope():
            table, dense = tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([2]))
            optimizer = make()
            if isinstance(optimizer, keras.Optimizer) and hasattr(optimizer, "build"):
                optimizer.build([table, dense])

        def step():
            with tf.GradientTape() as tape:
                ids = tf.ragged.constant([[0, 3, 3], [1]], dtype=tf.int64)
                (output,) = ge.group_embedding_lookup_sparse([table], [ids], "sum")
                loss = tf.reduce_sum((output * dense) ** 2)
            gradients = tape.gradient(loss, [table, dense])
            optimizer.apply_gradients(zip(gradients, [table, dense]))

        run = tf.function(lambda: strategy.run(step))
        for _ in range(3):
            run()
        return table.numpy(), dense.numpy()

    # When both are trained
    values = train(tf.distribute.MirroredStrategy(["/cpu:0"]))
    expected = train(tf.distribute.get_strategy())
    # Then they are the same
    for a, b in zip(values, expected):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 compiles no updates")
def test_compiled_updates_leave_tables_out():
    # Given an optimizer that has XLA compile its updates, as Keras 2 does where it sees a GPU
    table, dense = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([2]))
    optimizer = ge.optimizers.wrap(keras.SGD(0.5))
    optimizer.jit_compile = True

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            (output,) = ge.group_embedding_lookup([table], [[0, 1]])
            loss = tf.reduce_sum(output * dense)
        gradients = tape.gradient(loss, [table, dense])
        optimizer.apply_gradients(zip(gradients, [table, dense]))

    # When a step is taken
    step()
    # Then both are updated
    np.testing.assert_array_equal(table[:, 0], [0.5, 0.5, 1, 1])
    np.testing.assert_array_equal(dense, [0, 0])
