"""Columns of keys, beside stock columns of identity whose variable starts with the same rows."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

fc, v1 = tf.feature_column, tf.compat.v1
NUM_ROWS, DIM, STEPS = 12, 4, 4
FEATURES = {
    "user": [[3, 5, -1], [-1, -1, -1], [7, 7, 3]],
    "item": [[1, 2], [3, -1], [11, 0]],
    "strength": [[0.5, 2.0], [1.5, 0.0], [1.0, 3.0]],
}
ITEM_TIMES = tf.compat.v1.SparseTensorValue(
    [[0, 0], [0, 1], [2, 0]], np.array([4, 9, 9], np.int64), [3, 2]
)


def start_rows(seed):
    rows = np.random.default_rng(seed).normal(size=(NUM_ROWS, DIM)).astype(np.float32)
    return lambda shape, dtype=None, **_: tf.constant(rows)


OPTION = ge.EmbeddingVariableOption(init_option=ge.InitializerOption(default_value_dim=NUM_ROWS))


def keyed(name):
    return ge.categorical_column_with_embedding(name, tf.int64, ev_option=OPTION)


def identity(name):
    return fc.categorical_column_with_identity(name, NUM_ROWS)


def plain_columns(categorical):
    return [
        fc.embedding_column(categorical("user"), DIM, "mean", start_rows(1)),
        fc.embedding_column(
            fc.weighted_categorical_column(categorical("item"), "strength"),
            DIM, "sqrtn", start_rows(2),
        ),
    ]  # fmt: skip


def shared_columns(categorical):
    return v1.feature_column.shared_embedding_columns(
        [categorical("user"), categorical("item")], DIM, "sum", start_rows(3)
    )


def train_in_session(make_columns, categorical, scope, wrap):
    """The outputs of `input_layer` before and after each step."""
    with tf.Graph().as_default():
        with scope():
            columns = make_columns(categorical)
        features = {name: tf.constant(values) for name, values in FEATURES.items()}
        output = v1.feature_column.input_layer(features, columns)
        optimizer = wrap(v1.train.AdagradOptimizer(0.1))
        train = optimizer.minimize(tf.reduce_sum(output * output))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return [session.run((output, train))[0] for _ in range(STEPS)]


@pytest.mark.parametrize("scope", [ge.group_embedding_column_scope, contextlib.nullcontext])
@pytest.mark.parametrize("make_columns", [plain_columns, shared_columns])
def test_input_layer_trains_as_with_identity_columns(make_columns, scope):
    stock = train_in_session(make_columns, identity, contextlib.nullcontext, lambda o: o)

    ours = train_in_session(make_columns, keyed, scope, ge.optimizers.wrap)

    np.testing.assert_allclose(ours, stock, rtol=1e-6, atol=1e-6)


def test_the_table_of_a_column_keeps_a_budget():
    with tf.Graph().as_default(), v1.Session() as session:
        # Given a column whose table has space for ten keys
        options = ge.KeyedOptions(max_keys=10, budget_of="rank")
        with ge.group_embedding_column_scope():
            users = ge.categorical_column_with_embedding("user", tf.int64, ev_option=options)
            column = fc.embedding_column(users, DIM, initializer=tf.ones_initializer())
        ids = v1.placeholder(tf.int64, [4, 1])
        output = v1.feature_column.input_layer({"user": ids}, [column])
        optimizer = ge.optimizers.wrap(v1.train.GradientDescentOptimizer(0.1))
        step = v1.train.get_or_create_global_step()
        train = optimizer.minimize(tf.reduce_sum(output), global_step=step)
        (table,) = v1.trainable_variables()
        keys, counts = table.export().keys, table.budget_counts()
        session.run(v1.global_variables_initializer())
        # When it is trained with twenty keys
        for first in range(0, 20, 4):
            session.run(train, {ids: np.arange(4)[:, None] + first})
        # Then ten are there, the last eight among them
        kept = set(session.run(keys).tolist())
        assert len(kept) == session.run(counts).evicted == 10 and kept >= set(range(12, 20))


def test_keyed_and_plain_columns_are_looked_up_by_one_op():
    with tf.Graph().as_default() as graph, tf.device("/CPU:0"):  # where keyed tables are
        with ge.group_embedding_column_scope():
            columns = [
                fc.embedding_column(keyed("user"), DIM),
                fc.embedding_column(identity("item"), DIM),
            ]
        features = {name: tf.constant(values) for name, values in FEATURES.items()}

        v1.feature_column.input_layer(features, columns)

        types = [op.type for op in graph.get_operations()]
        assert (
            types.count("GroupEmbedding>GroupLookup")
            == types.count("GroupEmbedding>LocateRows")
            == 1
        )


@pytest.mark.skipif(not hasattr(tf.keras.layers, "DenseFeatures"), reason="Keras 3 has no columns")
def test_dense_features_trains_as_with_identity_columns():
    def train(categorical, wrap):
        layer = tf.keras.layers.DenseFeatures(plain_columns(categorical))
        optimizer = wrap(tf.keras.optimizers.Adagrad(0.1))
        outputs = []
        for _ in range(STEPS):
            with tf.GradientTape() as tape:
                output = layer({name: tf.constant(v) for name, v in FEATURES.items()})
                loss = tf.reduce_sum(output * output)
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            outputs.append(output.numpy())
        return outputs

    stock = train(identity, lambda o: o)
    ours = train(keyed, ge.optimizers.wrap)

    np.testing.assert_allclose(ours, stock, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not hasattr(tf.keras.layers, "DenseFeatures"), reason="Keras 3 has no columns")
def test_sequence_columns():
    times = tf.SparseTensor.from_value(ITEM_TIMES)
    ours = ge.sequence_categorical_column_with_embedding("item", tf.int64, ev_option=OPTION)
    stock = fc.sequence_categorical_column_with_identity("item", NUM_ROWS)

    (output, lengths), (expected, expected_lengths) = (
        tf.keras.experimental.SequenceFeatures(
            [fc.embedding_column(categorical, DIM, initializer=start_rows(4))]
        )({"item": times})
        for categorical in (ours, stock)
    )

    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(lengths, expected_lengths)


@pytest.mark.skipif(not hasattr(tf.keras.layers, "DenseFeatures"), reason="Keras 3 has no columns")
def test_strings_and_numbers_beyond_any_vocabulary():
    columns = [
        fc.embedding_column(ge.categorical_column_with_embedding("word"), DIM),
        fc.embedding_column(ge.categorical_column_with_embedding("key", tf.int64), DIM),
    ]
    features = {
        "word": tf.constant([["a", ""], ["a", "b"]]),
        "key": tf.SparseTensor([[0, 0], [1, 0]], tf.constant([-1, -(2**63)], tf.int64), [2, 1]),
    }

    layer = tf.keras.layers.DenseFeatures(columns)
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(features))
    tables = layer.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    assert sorted(int(table.total_count()) for table in tables) == [2, 2]


def test_a_column_is_written_down_and_read_back():
    option = ge.EmbeddingVariableOption(
        filter_option=ge.CBFFilter(3, 1000, 0.01, tf.uint8),
        evict_option=ge.GlobalStepEvict(7),
        init_option=ge.InitializerOption(tf.keras.initializers.Constant(2.0), None),
    )
    column = ge.categorical_column_with_embedding("user", tf.uint64, ev_option=option)

    config = column.get_config()
    again = type(column).from_config(config)

    assert again.get_config() == config
    assert again.ev_option.filter_option == option.filter_option
    assert again.name == "user"


def test_a_dtype_that_makes_no_column():
    with pytest.raises(ValueError, match="column .user.: expected dtype to be one of string"):
        ge.categorical_column_with_embedding("user", tf.float32)


def test_a_column_refuses_what_its_table_cannot_do():
    option = ge.EmbeddingVariableOption(ckpt=ge.CheckpointOption("somewhere"))
    with tf.Graph().as_default():
        keys = ge.categorical_column_with_embedding("user", tf.int64, ev_option=option)

        with pytest.raises(ValueError, match="expected ckpt_to_load_from to be the prefix"):
            v1.feature_column.input_layer(
                {"user": tf.constant([[1]])}, [fc.embedding_column(keys, DIM)]
            )


@pytest.mark.parametrize(
    "wrap",
    [lambda column: column, lambda column: fc.weighted_categorical_column(column, "strength")],
    ids=["plain", "weighted"],
)
def test_what_has_a_weight_for_each_value_takes_no_keys(wrap):
    features = {"user": np.array([[1]]), "strength": np.array([[1.0]])}
    instead = "column 'user.*: expected embedding_column.*got .*embedding_column\\(.*dimension=1"

    with pytest.raises(ValueError, match=instead):
        fc.indicator_column(wrap(keyed("user")))
    with tf.Graph().as_default(), pytest.raises(ValueError, match=instead):
        v1.feature_column.linear_model(features, [wrap(keyed("user"))])
    # And others are what they were
    column = fc.indicator_column(identity("user"))
    with tf.Graph().as_default():
        assert v1.feature_column.input_layer(features, [column]).shape == [1, NUM_ROWS]
        assert v1.feature_column.linear_model(features, [identity("user")]).shape == [1, 1]


def test_a_column_from_a_checkpoint_says_what_to_do_instead():
    with tf.Graph().as_default():
        column = fc.embedding_column(
            keyed("user"), DIM, ckpt_to_load_from="somewhere", tensor_name_in_ckpt="x"
        )

        with pytest.raises(ValueError, match="ckpt_to_load_from=None.*CheckpointOption"):
            v1.feature_column.input_layer({"user": tf.constant([[1]])}, [column])
