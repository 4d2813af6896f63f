"""Optimizers under SOK's names, and `init`."""

import numpy as np
import pytest
import tensorflow as tf

from group_embedding import sok

v1 = tf.compat.v1
LossScaleOptimizer = tf.keras.mixed_precision.LossScaleOptimizer
IDS = [0, 2, 2]


def loss_of(table):
    return tf.reduce_sum(sok.all2all_dense_embedding(table, tf.constant(IDS, tf.int64)))


def step(optimizer, *tables):
    with tf.GradientTape() as tape:
        loss = tf.add_n([loss_of(table) for table in tables])
    optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))


def rows():
    return sok.Variable(np.ones([3, 2], np.float32))


def keys():
    return sok.DynamicVariable(dimension=2, initializer="1")


def read(table):
    return sok.all2all_dense_embedding(table, tf.constant([0, 1, 2], tf.int64)).numpy()


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9}),
        ("Adadelta", {}),
        ("Adagrad", {}),
        ("Adam", {}),
        ("Adamax", {}),
        ("Ftrl", {}),
    ],
)
def test_tables_of_both_kinds_train_alike(name, arguments):
    static, dynamic = rows(), keys()
    optimizer = sok.OptimizerWrapper(getattr(tf.keras.optimizers, name)(0.1, **arguments))

    for _ in range(3):
        step(optimizer, static, dynamic)

    np.testing.assert_allclose(read(static), read(dynamic), rtol=1e-6)
    assert (read(static)[[0, 2]] < 1).all() and (read(static)[1] == 1).all()


def test_one_optimizer_for_tables_and_its_origin_for_other_variables():
    table, dense = rows(), tf.Variable([1.0])
    origin = tf.keras.optimizers.Adam(0.1)
    optimizer = sok.OptimizerWrapper(origin)
    expected, alone = tf.Variable([1.0]), tf.keras.optimizers.Adam(0.1)

    for _ in range(2):
        step(optimizer, table)
        origin.apply_gradients([(tf.constant([2.0]), dense)])
        alone.apply_gradients([(tf.constant([2.0]), expected)])

    np.testing.assert_allclose(dense, expected, rtol=1e-6)
    assert (read(table)[0] < 1).all()


def test_what_keras_saves_of_it_is_what_it_saves_of_its_origin():
    origin = tf.keras.optimizers.Adagrad(0.1)
    optimizer = sok.OptimizerWrapper(origin)

    step(optimizer, rows())
    origin.apply_gradients([(tf.constant([2.0]), tf.Variable([1.0]))])

    assert len(optimizer.variables) == len(origin.variables)


def test_a_learning_rate_set_on_the_origin_is_that_of_tables():
    table = rows()
    origin = tf.keras.optimizers.SGD(0.1)
    optimizer = sok.OptimizerWrapper(origin)

    origin.learning_rate = 0.5
    step(optimizer, table)

    np.testing.assert_array_equal(read(table)[:, 0], [0.5, 1, 0])


def test_an_optimizer_without_a_native_rule_trains_tables_with_rows_alone():
    static, dynamic = rows(), keys()
    optimizer = sok.OptimizerWrapper(tf.keras.optimizers.Nadam(0.1))

    step(optimizer, static)

    assert (read(static)[0] < 1).all()
    with pytest.raises(TypeError, match="expected an optimizer that .* got Nadam"):
        step(sok.OptimizerWrapper(tf.keras.optimizers.Nadam(0.1)), dynamic)


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(TypeError, match="or a Keras optimizer, got str"):
        sok.OptimizerWrapper("adam")


LEGACY = tf.keras.optimizers.legacy
IS_KERAS_2 = hasattr(LEGACY.Optimizer, "apply_gradients")


@pytest.mark.skipif(not IS_KERAS_2, reason="Keras 3 has no legacy optimizers")
@pytest.mark.parametrize("table", [rows, keys])
def test_a_legacy_optimizer_trains_other_variables_beside(table):
    # Given a legacy Adam, whose steps are the larger the fewer there were, and one for tables
    table, dense = table(), tf.Variable([1.0])
    origin = LEGACY.Adam(0.1)
    optimizer = sok.OptimizerWrapper(origin)
    expected, alone = tf.Variable([1.0]), LEGACY.Adam(0.1)
    expected_table, of_table = tf.Variable(np.ones([3, 2], np.float32)), LEGACY.Adam(0.1)

    # When both take three steps, the last at another learning rate
    for rate in (0.1, 0.1, 0.3):
        for one in (origin, alone, of_table):
            one.learning_rate = rate
        step(optimizer, table)
        origin.apply_gradients([(tf.constant([2.0]), dense)])
        alone.apply_gradients([(tf.constant([2.0]), expected)])
        of_table.apply_gradients([(tf.constant([[1.0] * 2, [0] * 2, [2] * 2]), expected_table)])

    # Then each does what it would do alone
    np.testing.assert_allclose(dense, expected, rtol=1e-6)
    np.testing.assert_allclose(read(table), expected_table, rtol=1e-5)
    assert optimizer.iterations.numpy() == origin.iterations.numpy() == 3


@pytest.mark.parametrize("make", [rows, keys])
def test_an_optimizer_of_tensorflow_1_trains_other_variables_beside(make):
    # Given a graph in which one Adam trains a variable, and what SOK makes of it a table
    with tf.Graph().as_default(), v1.Session() as session:
        table, origin = make(), v1.train.AdamOptimizer(0.1)
        dense, expected = (v1.get_variable(n, initializer=[[1.0]] * 3) for n in ("a", "b"))
        gradient = tf.constant([[1.0], [0.0], [2.0]])
        steps = tf.group(
            sok.OptimizerWrapper(origin).minimize(loss_of(table), var_list=[table]),
            origin.apply_gradients([(gradient, dense)]),
            v1.train.AdamOptimizer(0.1).apply_gradients([(gradient, expected)]),
        )
        found = sok.all2all_dense_embedding(table, tf.constant([0, 1, 2], tf.int64))
        session.run(v1.global_variables_initializer())

        # When both take three steps
        for _ in range(3):
            session.run(steps)

        # Then each does what it would do alone
        found, dense, expected = session.run([found, dense, expected])
        np.testing.assert_allclose(dense, expected, rtol=1e-6)
        np.testing.assert_allclose(found[:, :1], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [sok.optimizers.Adam, sok.tf.keras.optimizers.Adam, sok.tf.keras.optimizers.LazyAdamOptimizer],
)
def test_adams(make):
    table, expected = keys(), tf.Variable(np.ones([3, 2], np.float32))
    optimizer, stock = (
        make(learning_rate=0.1, amsgrad=True),
        tf.keras.optimizers.Adam(0.1, amsgrad=True),
    )

    for _ in range(3):
        step(optimizer, table)
        gradient = np.float32([[1, 1], [0, 0], [2, 2]])  # 0 leaves moments of 0
        stock.apply_gradients([(tf.constant(gradient), expected)])

    np.testing.assert_allclose(read(table), expected, rtol=1e-5)


def scaled_step(optimizer, table):
    scale = getattr(optimizer, "get_scaled_loss", None) or optimizer.scale_loss
    with tf.GradientTape() as tape:
        loss = scale(loss_of(table))
    gradients = tape.gradient(loss, [table])
    gradients = getattr(optimizer, "get_unscaled_gradients", list)(gradients)
    optimizer.apply_gradients(zip(gradients, [table]))


def test_a_loss_scale_goes_around():
    table = rows()
    optimizer = LossScaleOptimizer(sok.SGD(lr=0.5))

    scaled_step(optimizer, table)

    np.testing.assert_array_equal(read(table)[:, 0], [0.5, 1, 0])


def test_a_loss_scale_of_a_stock_optimizer_in_a_scope():
    table = keys()
    optimizer = LossScaleOptimizer(tf.keras.optimizers.SGD(0.5))

    with sok.OptimizerScope([table]):
        scaled_step(optimizer, table)

    np.testing.assert_array_equal(read(table)[:, 0], [0.5, 1, 0])


def test_a_loss_scale_inside_is_refused():
    optimizer = LossScaleOptimizer(tf.keras.optimizers.SGD(0.5))

    with pytest.raises(TypeError, match="the optimizer inside, got a LossScaleOptimizer; it goes"):
        sok.OptimizerWrapper(optimizer)


def test_a_graph_of_tensorflow_1():
    with tf.Graph().as_default(), v1.Session() as session:
        started = sok.Init(global_batch_size=8)
        table = keys()
        train_op = sok.SGD(lr=0.5).minimize(loss_of(table), var_list=[table])
        found = sok.all2all_dense_embedding(table, tf.constant([0, 1, 2], tf.int64))
        session.run(started)
        session.run(v1.global_variables_initializer())

        session.run(train_op)

        np.testing.assert_array_equal(session.run(found)[:, 0], [0.5, 1, 0])


def start_on_rank():
    first, second = sok.init(use_legacy_optimizer=False), sok.Init(global_batch_size=8)
    try:
        sok.Init(global_batch_size=7)
    except ValueError as error:
        return first, second, str(error)


def test_a_second_start_changes_nothing(two_ranks):
    for first, second, message in two_ranks.run(start_on_rank):
        assert first is None and second is None
        assert "multiple of 2, the number of ranks, got 7" in message


@pytest.mark.parametrize(
    "start, message",
    [
        (lambda: sok.init(comm_tool="mpi"), "comm_tool to be 'horovod' or 'single', got 'mpi'"),
        (lambda: sok.Init(global_batch_size=0), "positive multiple of 1"),
    ],
)
def test_a_start_that_cannot_be_is_refused(start, message):
    with pytest.raises(ValueError, match=message):
        start()


def test_ranks_of_another_strategy_are_refused():
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")

    with strategy.scope(), pytest.raises(ValueError, match="a tf.distribute.MirroredStrategy"):
        sok.init(use_legacy_optimizer=False)


def test_legacy_optimizers_of_tf_keras_train_tables_beside_keras_3():
    tf_keras = pytest.importorskip("tf_keras")
    # Given a table of keys, and a legacy optimizer of the package tf_keras, as SOK's scripts have
    # them from TensorFlow 2.17 on
    table = sok.DynamicVariable(dimension=2, initializer="3")
    optimizer = sok.OptimizerWrapper(tf_keras.optimizers.legacy.SGD(0.5, momentum=0.5))
    for _ in range(2):
        with tf.GradientTape() as tape:
            rows = sok.lookup_sparse(table, tf.ragged.constant([[7, 9]], tf.int64), combiners="sum")
            loss = tf.reduce_sum(rows)
        # When it takes two steps
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    # Then momentum has moved the rows as stock does
    np.testing.assert_allclose(sok.export(table)[1], np.full([2, 2], 3 - 0.5 - 0.75), rtol=1e-6)
