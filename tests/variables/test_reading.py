"""A key gets a row only when it is trained: reading never changes a table, in any mode."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import IS_KERAS_3
from group_embedding.variables.keras_variable import as_keras_variable

NEW = np.array([3, -4, 3])


def rows_of(table, keys=NEW):
    return ge.group_embedding_lookup([table], [tf.convert_to_tensor(keys)])[0]


def test_eager(make_table):
    # Given a table
    table = make_table()
    # When it is read without a tape, and under some that do not record it
    rows_of(table)
    with tf.GradientTape() as tape, tape.stop_recording():
        rows_of(table)
    weights = tf.ragged.constant([[2.0, 3.0]])
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights.values)
        ids = tf.ragged.constant([[5, 6]], dtype=tf.int64)
        (rows,) = ge.group_embedding_lookup_sparse([table], [ids], "sum", sp_weights=[weights])
    np.testing.assert_array_equal(tape.gradient(rows, weights.values), [2, 2])
    # Then no key is there
    assert int(table.total_count()) == 0


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("key_dtype", [tf.int32, tf.int64, tf.uint32, tf.uint64])
def test_eager_read_is_a_lookup(make_table, key_dtype, dtype):
    # Given a table with some keys, whose others start as one of three rows
    matrix = tf.constant(np.arange(9).reshape(3, 3), dtype)
    table = make_table(3, matrix, rows=3, key_dtype=key_dtype, value_dtype=dtype)
    every = np.append(np.arange(5000, dtype=key_dtype.as_numpy_dtype), key_dtype.max)
    present = every[::2]
    table.insert(present, np.random.default_rng(1).normal(size=[len(present), 3]))
    table.erase([4])
    for shape in ([], [0], [2, 3], [2, 0, 3], [3, 2000]):  # the last: more than is read at a time
        keys = tf.constant(every[np.random.default_rng(2).integers(0, 5001, shape)], key_dtype)
        # When keys are read, with a tape and without
        rows = table.sparse_read(keys)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(tf.constant(0.0))
            looked_up = table.sparse_read(keys)
        # Then the rows are the same, and of this shape
        assert rows.shape == [*shape, 3]
        assert rows.dtype == dtype
        np.testing.assert_array_equal(tf.cast(rows, tf.float32), tf.cast(looked_up, tf.float32))
    # And no key has been inserted, or counted
    assert int(table.total_count()) == len(present) - 1
    assert not np.any(table.get_frequency(every))


@pytest.mark.parametrize("filter_option", [None, ge.CounterFilter(filter_freq=2)])
@pytest.mark.parametrize("rows", [4, None])
def test_eager_read_of_keys_without_a_row(make_table, filter_option, rows):
    # Given an empty table
    option = ge.InitializerOption(default_value_dim=rows, default_value_no_permission=-3.0)
    initializer = tf.keras.initializers.RandomUniform(seed=1)
    table = make_table(initializer=initializer, init_option=option, filter_option=filter_option)
    keys = tf.constant([7, -7, 8], tf.int64)
    # When it is read
    read = table.sparse_read(keys)
    # Then it reads what a lookup does
    looked_up = tf.function(lambda: table.sparse_read(keys))()
    np.testing.assert_array_equal(read, looked_up)


def test_eager_read_of_what_was_trained(make_table, train):
    # Given a table whose rows do not all fit the first tier, where there are two
    table = make_table(64)
    parts = np.split(np.arange(9000), 9)
    for part in parts:
        train(table, part)
    for part in parts:
        # When they are read again
        rows = table.sparse_read(tf.constant(part))
        # Then each is what it was trained to be
        np.testing.assert_array_equal(rows, np.zeros([1000, 64]))


@pytest.mark.parametrize("keys", [[1, 2], tf.constant([1], tf.int32)], ids=["list", "int32"])
def test_eager_read_of_other_keys(make_table, keys):
    with pytest.raises(TypeError, match="'ids\\[0\\]': expected ids of uint32.*got int32"):
        make_table(key_dtype=tf.uint32).sparse_read(keys)


@pytest.mark.parametrize("keys", [[1, 2], tf.constant([1, 2], tf.int32)], ids=["list", "int32"])
def test_eager_read_of_narrower_keys(make_table, keys):
    # Given a table of int64 keys with two rows
    table = make_table(2)
    table.insert([1, 2], [[1.0, 2.0], [4.0, 5.0]])
    # When they are read by keys of int32, then the rows are theirs
    np.testing.assert_array_equal(table.sparse_read(keys), [[1, 2], [4, 5]])


def test_function(make_table):
    # Given a function that reads, also under a tape that is never asked
    table = make_table()

    @tf.function
    def evaluate():
        with tf.GradientTape():
            return rows_of(table)

    # When it runs
    evaluate()
    # Then no key is there
    assert int(table.total_count()) == 0


def test_function_differentiated_from_outside(make_table):
    # Given a function that reads
    table = make_table()
    read = tf.function(lambda: rows_of(table))
    read()
    assert int(table.total_count()) == 0
    # When a tape around a call of it is asked for the gradient
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(read())
    gradient = tape.gradient(loss, table)
    # Then that call has inserted
    assert int(table.total_count()) == 2
    assert sorted(np.asarray(table.get_frequency(NEW))) == [1, 2, 2]
    np.testing.assert_array_equal(tf.reduce_sum(gradient.values), 6)
    # And When the function is called by itself again, Then that does not
    table.erase(NEW)
    read()
    assert int(table.total_count()) == 0


def test_functions_within_functions(make_table):
    # Given a step that differentiates another function
    table = make_table()
    inner = tf.function(lambda: rows_of(table))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inner())
        return tape.gradient(loss, table).values

    # When only the inner one is called, and then the step
    inner()
    before = int(table.total_count())
    step()
    # Then the step has inserted
    assert (before, int(table.total_count())) == (0, 2)


def test_cond(make_table):
    # Given a lookup in a branch
    table = make_table()
    branch = tf.constant(True)

    def loss():
        return tf.cond(branch, lambda: tf.reduce_sum(rows_of(table)), lambda: 0.0)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = loss()
        return tf.reduce_sum(tape.gradient(value, table).values)

    # When it is evaluated, and then differentiated
    tf.function(loss)()
    before = int(table.total_count())
    total = step()
    # Then that has inserted
    assert (before, int(table.total_count())) == (0, 2)
    assert total == 6


def test_session(make_table):
    # Given a graph of TensorFlow 1 with a lookup for training and one for evaluation
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = make_table()
        evaluate = rows_of(table, tf.constant([7, 8], tf.int64))
        optimizer = ge.optimizers.wrap(tf.compat.v1.train.GradientDescentOptimizer(1.0))
        train = optimizer.minimize(tf.reduce_sum(rows_of(table)))
        session.run(tf.compat.v1.global_variables_initializer())
        # When each runs
        session.run(evaluate)
        before = session.run(table.total_count())
        session.run(train)
        # Then training alone has inserted
        assert before == 0
        np.testing.assert_array_equal(session.run(table.export()).keys, [-4, 3])


def test_gradients_of_a_lookup_that_a_session_has_run(make_table):
    # Given a lookup that a session has run before it was differentiated
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = make_table()
        loss = tf.reduce_sum(rows_of(table))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(loss)
        train = ge.optimizers.wrap(tf.compat.v1.train.AdagradOptimizer(1.0)).minimize(loss)
        session.run(tf.compat.v1.variables_initializer(tf.compat.v1.global_variables()[1:]))
        # When it is trained by that session, Then the error says what to do
        with pytest.raises(tf.errors.FailedPreconditionError, match="minimize.*before a session"):
            session.run(train)


class Rows(tf.keras.layers.Layer):
    def __init__(self, table):
        super().__init__()
        self.table = table
        self.supports_jit = False  # XLA cannot compile the lookup
        if IS_KERAS_3:
            self._track_variable(as_keras_variable(table))

    def call(self, keys):
        return tf.reduce_sum(rows_of(self.table, tf.reshape(keys, [-1])), axis=-1, keepdims=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_keras_model(make_table, run_eagerly):
    # Given a model with a table
    table = make_table()
    model = tf.keras.Sequential([tf.keras.Input([1], dtype=tf.int64), Rows(table)])
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    keys, targets = np.array([[5], [6], [5]]), np.zeros([3, 1])
    # When it evaluates and predicts, and then fits
    model.evaluate(keys, targets, verbose=0)
    model.predict(keys, verbose=0)
    before = int(table.total_count())
    first = model.evaluate(keys, targets, verbose=0)
    model.fit(keys, targets, epochs=5, verbose=0)
    last = model.evaluate(keys + 0, targets, verbose=0)
    model.predict(keys + 10, verbose=0)
    # Then fitting alone has inserted
    assert before == 0
    np.testing.assert_array_equal(table.export().keys, [5, 6])
    assert last < first
    assert len(model.trainable_variables) == 1


def test_saved_model(make_table, tmp_path):
    # Given a module with tables, a serving function and a training step
    module = tf.Module()
    starts = [np.arange(2 * dim).reshape(2, dim) + 10 * dim for dim in (2, 3, 1)]
    module.tables = [
        make_table(start.shape[1], tf.constant(start, tf.float32), f"table_{t}", rows=2)
        for t, start in enumerate(starts)
    ]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(keys):
        return ge.group_embedding_lookup(module.tables, [keys] * len(module.tables))

    module.serve = serve
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(rows) for rows in module.serve(NEW)])
    assert None not in tape.gradient(loss, module.tables)
    # When it is saved, loaded and served
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    served = loaded.serve(tf.constant([0, 1, 7], tf.int64))
    # Then keys without a row read what they would start as, and no op trains
    for rows, start in zip(served, starts):
        np.testing.assert_array_equal(rows, start[[0, 1, 1]])
    functions = [loaded.serve.get_concrete_function(tf.TensorSpec([None], tf.int64))]
    for function in functions:
        located = [
            op for op in function.graph.get_operations() if op.type == "GroupEmbedding>LocateRows"
        ]
        assert not any(op.get_attr("training") for op in located)
