"""Initial values of keys on several ranks, whose random numbers differ: all ranks use the first
rank's."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange

v1 = tf.compat.v1
KEYS = np.arange(-30, 30)
SEED = 5  # of rank 0, and of one process
OPTIONS = {
    "rows of a matrix": ge.InitializerOption(default_value_dim=8),
    "values of their own": ge.InitializerOption(default_value_dim=None),
}


def table_of(name):
    """A table with an initializer without a seed."""
    option = ge.EmbeddingVariableOption(init_option=OPTIONS[name])
    initializer = tf.random_normal_initializer()
    return ge.get_embedding_variable("user", 3, initializer=initializer, ev_option=option)


def start_eagerly(name):
    tf.random.set_seed(SEED + exchange.current().rank)
    table = table_of(name)
    with tf.GradientTape() as tape:
        (rows,) = ge.group_embedding_lookup([table], [tf.constant(KEYS)])
    tape.gradient(rows, table)
    return np.asarray(rows)


def start_in_a_graph(name):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(SEED + exchange.current().rank)
        table = table_of(name)
        (rows,) = ge.group_embedding_lookup([table], [tf.constant(KEYS)])
        gradient = tf.gradients(rows, table)[0].values
        session.run(v1.global_variables_initializer())
        return session.run([rows, gradient])[0]


MODES = {"eagerly": start_eagerly, "in a graph": start_in_a_graph}


def start_on_rank():
    ge.enable_distributed_strategy()
    return {(mode, name): start(name) for mode, start in MODES.items() for name in OPTIONS}


@pytest.fixture(scope="module")
def ranks(several_ranks):
    return several_ranks.run(start_on_rank)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("mode", MODES)
def test_keys_start_as_in_one_process(ranks, mode, name):
    expected = MODES[mode](name)

    for rank in ranks:
        np.testing.assert_array_equal(rank[mode, name], expected)


def make_another_on_rank(differs):
    ge.enable_distributed_strategy()
    arguments = {"name": "user", "embedding_dim": 3, "key_dtype": tf.int64}
    if exchange.current().rank == 1:
        arguments.update(differs)
    try:
        ge.get_embedding_variable(**arguments)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "differs, theirs",
    [
        ({"name": "item"}, "table 'item': dim 3 of float32, keys of int64"),
        ({"embedding_dim": 4}, "table 'user': dim 4 of float32, keys of int64"),
        ({"key_dtype": tf.uint32}, "table 'user': dim 3 of float32, keys of uint32"),
    ],
)
def test_ranks_that_make_different_tables_are_told(two_ranks, differs, theirs):
    first, second = two_ranks.run(make_another_on_rank, differs)

    ours = "table 'user': dim 3 of float32, keys of int64"
    assert first.startswith(ours) and second.startswith(theirs)
    assert f"expected the same table on all ranks, got {theirs}" in first and "rank 1" in first
    assert f"expected the same table on all ranks, got {ours}" in second and "rank 0" in second


def train_a_model_that_a_function_builds():
    """Its variables after a step, or what it raised."""
    ge.enable_distributed_strategy()
    tf.random.set_seed(SEED + exchange.current().rank)
    model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    optimizer = ge.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    try:
        step(tf.ones([1, 3]))
    except ValueError as error:
        return str(error)
    return [variable.numpy() for variable in model.trainable_variables]


def test_a_model_that_a_function_builds_starts_alike_or_says_how_to(several_ranks):
    # When the first step of a function builds a model on each rank, whose random numbers differ
    first, *others = several_ranks.run(train_a_model_that_a_function_builds)
    # Then either they start alike, or, where they have no values then, all say what to do
    for other in others:
        if isinstance(first, str):
            assert "build the model before" in first and "build the model before" in other
        else:
            np.testing.assert_array_equal(first[0], other[0])


def start_among_updates():
    """Starts tables as models of TensorFlow 1 with batch norm do: their optimizer runs after
    updates, which read variables. Returns the variables' values; the second starts from the
    first."""
    ge.enable_distributed_strategy()
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            v1.set_random_seed(SEED + exchange.current().rank)
            first = v1.Variable(tf.random.normal([3]), use_resource=False)
            second = v1.Variable(first + 1.0, use_resource=False)
            average = v1.Variable(0.0, trainable=False, use_resource=False)
            update = average.assign(tf.reduce_sum(first))
            optimizer = ge.DistributedOptimizer(v1.train.MomentumOptimizer(0.0, 0.9))
            with tf.control_dependencies([update]):
                train = optimizer.minimize(tf.reduce_sum(first * second))
            session.run(v1.global_variables_initializer())
            session.run(train)
            return session.run([first, second, average])
    finally:
        v1.enable_control_flow_v2()


def test_variables_start_alike_where_an_optimizer_runs_after_updates(several_ranks):
    # When variables are initialized that an optimizer trains, one of them from another one's value
    first, *others = several_ranks.run(start_among_updates)
    # Then they are those of the first rank
    np.testing.assert_allclose(first[1], first[0] + 1, rtol=1e-6)
    np.testing.assert_allclose(first[2], np.sum(first[0]), rtol=1e-6)
    for other in others:
        for ours, theirs in zip(other, first):
            np.testing.assert_array_equal(ours, theirs)
