"""EmbeddingVariables under every optimizer: equal to variables with the same rows."""

import numpy as np
import pytest
import tensorflow as tf
from support.cases import optimizer_cases as cases

import group_embedding as ge

STEPS = 40
v1, keras = tf.compat.v1.train, tf.keras.optimizers

V1 = {
    "sgd": lambda: ge.optimizers.wrap(v1.GradientDescentOptimizer(0.05)),
    "momentum": lambda: ge.optimizers.wrap(v1.MomentumOptimizer(0.02, 0.9, use_nesterov=True)),
    "adagrad": lambda: ge.optimizers.wrap(v1.AdagradOptimizer(0.1)),
    "ftrl": lambda: ge.optimizers.wrap(
        v1.FtrlOptimizer(0.1, initial_accumulator_value=0.3, l1_regularization_strength=0.01)
    ),
    "rmsprop": lambda: ge.optimizers.wrap(v1.RMSPropOptimizer(0.01, momentum=0.5, centered=True)),
    "adam": lambda: ge.optimizers.wrap(v1.AdamOptimizer(0.01)),
}
KERAS = {
    "sgd": lambda: ge.optimizers.wrap(keras.SGD(0.05, clipvalue=0.05)),
    "sgd_clipnorm": lambda: ge.optimizers.wrap(keras.SGD(0.05, global_clipnorm=0.2)),
    "momentum": lambda: ge.optimizers.wrap(keras.SGD(0.02, momentum=0.9, nesterov=True)),
    "adagrad": lambda: ge.optimizers.wrap(keras.Adagrad(0.1, initial_accumulator_value=0.3)),
    "amsgrad": lambda: ge.optimizers.wrap(keras.Adam(0.01, amsgrad=True)),
    "adamw": lambda: ge.optimizers.wrap(keras.AdamW(0.01, weight_decay=0.1)),
    "ftrl": lambda: ge.optimizers.wrap(keras.Ftrl(0.1, beta=0.1, l1_regularization_strength=0.01)),
    "rmsprop": lambda: ge.optimizers.wrap(keras.RMSprop(0.01, momentum=0.5, centered=True)),
}
OWN = {
    "rowwise_adagrad": lambda: ge.optimizers.RowwiseAdagrad(0.1),
    "rowwise_adam": lambda: ge.optimizers.RowwiseAdam(0.1),
    "lazy_adam": lambda: ge.optimizers.LazyAdam(0.01),
    "lamb": lambda: ge.optimizers.Lamb(0.01),
}
if hasattr(keras, "legacy") and hasattr(keras.Optimizer, "_deduplicate_sparse_grad"):
    legacy = keras.legacy
    KERAS.update(
        legacy_momentum=lambda: ge.optimizers.wrap(legacy.SGD(0.02, momentum=0.9)),
        legacy_adagrad=lambda: ge.optimizers.wrap(legacy.Adagrad(0.1)),
        legacy_adam=lambda: ge.optimizers.wrap(legacy.Adam(0.01)),
        legacy_ftrl=lambda: ge.optimizers.wrap(legacy.Ftrl(0.1, beta=0.1)),
        legacy_rmsprop=lambda: ge.optimizers.wrap(legacy.RMSprop(0.01, centered=True)),
    )


def make_batches(steps):
    """Without padding: of a keyed table -1 is a key."""
    batches = cases.make_batches(steps)
    return batches._replace(ids=[np.abs(ids) for ids in batches.ids])


def make_keyed(name, dim, storage, **arguments):
    option = ge.EmbeddingVariableOption(storage_option=storage)
    return ge.get_embedding_variable(name, dim, ev_option=option, **arguments)


def make_tables(storage, dtype=tf.float32):
    """The tables of cases.make_variables as keyed tables, with every key of the model."""
    _, _, dense = cases.make_variables()
    tables = [
        make_keyed(name, values.shape[1], storage, value_dtype=dtype)
        for name, values in zip(("first", "second"), cases.initial_values())
    ]
    for table, values in zip(tables, cases.initial_values()):
        table.insert(np.arange(len(values))[::-1], values[::-1])
    return [*tables, dense]


def values_of(variables):
    first, second, dense = variables
    return [tf.cast(v, tf.float32) for v in (first.export().values, second.export().values, dense)]


def device_of(storage):
    return "/GPU:0" if "HBM" in str(storage.storage_type) else "/CPU:0"


@pytest.fixture(autouse=True)
def device(storage):
    """Variables are where the tables are that they are compared with."""
    with tf.device(device_of(storage)):
        yield


def train_session(make_optimizer, batches, storage):
    with tf.Graph().as_default(), tf.device(device_of(storage)), tf.compat.v1.Session() as session:
        tables = [
            make_keyed(name, values.shape[1], storage)
            for name, values in zip(("first", "second"), cases.initial_values())
        ]
        inserts = [
            table.insert(np.arange(len(values)), values)
            for table, values in zip(tables, cases.initial_values())
        ]
        dense = tf.compat.v1.get_variable("dense", initializer=np.ones([cases.WIDTH], np.float32))
        place = tf.compat.v1.placeholder(tf.int32, [])
        train = make_optimizer().minimize(cases.loss_of([*tables, dense], batches.at(place)))
        exported = values_of([*tables, dense])
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(inserts)
        for i in range(len(batches.targets)):
            session.run(train, {place: i})
        return session.run(exported)


def hide(gradients):
    """So that no optimizer sees the op that made them."""
    return [
        tf.IndexedSlices(tf.identity(g.values), g.indices, g.dense_shape)
        if isinstance(g, tf.IndexedSlices)
        else g
        for g in gradients
    ]


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", [*V1, *OWN])
def test_session_equals_variables(name, storage):
    make, batches = (V1 | OWN)[name], make_batches(STEPS)
    # Given what variables become in 40 steps
    expected = cases.train_session(make, batches, device=device_of(storage))
    # When tables with the same rows are trained in a Session
    actual = train_session(make, batches, storage)
    # Then they are the same
    cases.assert_close(actual, expected, 1e-6)


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", [*KERAS, *OWN])
def test_function_equals_variables(name, storage):
    make, batches = (KERAS | OWN)[name], make_batches(STEPS)
    # Given what variables become in 40 steps
    expected = cases.train_function(make(), batches)
    # When tables with the same rows are trained in a function, fused and by slices
    fused, slices = make_tables(storage), make_tables(storage)
    for tables, change in ((fused, None), (slices, hide)):
        step = cases.make_step(make(), batches, tables, change)
        for i in range(STEPS):
            step(tf.constant(i))
    # Then they are the same, slices to the bit
    cases.assert_close(values_of(fused), expected, 1e-6)
    cases.assert_same_bits(values_of(slices), values_of(fused))


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["adagrad", "amsgrad", "ftrl"])
def test_eager_steps(name, storage):
    # Given some steps in a function
    batches = make_batches(5)
    expected = make_tables(storage)
    step = cases.make_step(KERAS[name](), batches, expected)
    for i in range(5):
        step(tf.constant(i))
    # When they are taken eagerly
    tables, optimizer = make_tables(storage), KERAS[name]()
    for i in range(5):
        cases.take_step(optimizer, batches, tables, i)
    # Then the rows are the same
    cases.assert_close(values_of(tables), values_of(expected), 1e-6)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_tables_of_16_bits(dtype, storage):
    # Given what variables of the type become
    batches = make_batches(5)
    variables = cases.make_variables(dtype)
    expected = cases.train_function(KERAS["adagrad"](), batches, variables)
    # When tables of the type are trained
    tables = make_tables(storage, dtype)[:2] + [variables[2]]
    variables[2].assign(tf.ones([cases.WIDTH], variables[2].dtype))
    step = cases.make_step(KERAS["adagrad"](), batches, tables)
    for i in range(5):
        step(tf.constant(i))
    # Then they are the same
    cases.assert_close(values_of(tables), expected, 1e-3)


def test_fused_with_variables_in_one_op(storage):
    # Given a group of a variable and two tables
    batches = make_batches(1)
    tables = make_tables(storage)
    # When its step is traced
    ops = cases.step_ops(cases.make_step(V1["adagrad"](), batches, tables))
    # Then one op updates all
    assert ops.count("GroupEmbedding>GroupUpdate") == 1
    assert (
        "GroupEmbedding>GroupUpdateSlices" not in ops
        and "GroupEmbedding>GroupLookupGrad" not in ops
    )


def test_new_keys_start_with_the_optimizers_slots(make_table, train, read):
    # Given a table and an optimizer whose accumulator starts as 3
    table = make_table()
    optimizer = ge.optimizers.wrap(keras.Adagrad(1.0, initial_accumulator_value=3.0, epsilon=1e-7))
    # When keys come in two steps, and one of both
    train(table, [7], optimizer)
    train(table, [7, 8], optimizer)
    # Then each goes its own way: 1 / sqrt(3 + 1), then 1 / sqrt(3 + 2)
    np.testing.assert_allclose(read(table, [7])[0, 0], 1 - 1 / 2 - 1 / 5**0.5, rtol=1e-5)
    np.testing.assert_allclose(read(table, [8])[0, 0], 1 - 1 / 2, rtol=1e-5)


def test_erased_keys_start_anew(make_table, train, read):
    # Given a key with a row and slots, erased
    table = make_table()
    optimizer = ge.optimizers.wrap(keras.Adagrad(1.0, initial_accumulator_value=3.0))
    for _ in range(3):
        train(table, [7], optimizer)
    table.erase([7])
    # When it is trained again
    train(table, [7], optimizer)
    # Then nothing is left of what it was
    np.testing.assert_allclose(read(table, [7])[0, 0], 1 - 1 / 2, rtol=1e-5)
    assert int(table.get_frequency([7])[0]) == 1


def test_not_trainable(make_table, train):
    # Given a table that is not trained, beside one that is
    fixed, table = make_table(name="fixed", trainable=False), make_table()
    ids = tf.constant([1, 2], tf.int64)

    # When both are looked up and the loss is differentiated, eagerly and in a function
    def gradients():
        with tf.GradientTape() as tape:
            outputs = ge.group_embedding_lookup([fixed, table], [ids, ids])
            loss = tf.reduce_sum(outputs[0] * outputs[1])
        return tape.gradient(loss, [fixed, table])

    for of_fixed, of_table in (gradients(), tf.function(gradients)()):
        assert of_fixed is None and of_table is not None
    # Then only the other has keys
    assert (int(fixed.total_count()), int(table.total_count())) == (0, 2)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_stock_keras_optimizer_says_to_wrap_it(make_table, name):
    # Given a stock optimizer of Keras
    table, optimizer = make_table(), getattr(keras, name)(0.1)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, tf.constant([1], tf.int64)))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    # When it trains a table, Then it is refused
    with pytest.raises(TypeError, match="table 'user'.*optimizers.wrap"):
        step()


@pytest.mark.parametrize("name", ["GradientDescentOptimizer", "AdagradOptimizer", "AdamOptimizer"])
def test_stock_v1_optimizer_says_to_wrap_it(make_table, name):
    with tf.Graph().as_default():
        table = make_table()
        loss = tf.reduce_sum(tf.gather(table, tf.constant([1], tf.int64)))
        with pytest.raises(TypeError, match="table 'user'.*optimizers.wrap"):
            getattr(v1, name)(0.1).minimize(loss)
