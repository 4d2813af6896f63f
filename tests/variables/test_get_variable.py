"""`get_embedding_variable`: scopes, reuse, collections, and what it refuses."""

import types

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

v1 = tf.compat.v1


def test_scopes_and_reuse():
    with tf.Graph().as_default():
        # Given a table in a scope
        with v1.variable_scope("scope"):
            first = ge.get_embedding_variable("user", 4)
        # When it is asked for again, in the scope's reuse
        with v1.variable_scope("scope", reuse=True):
            again = ge.get_embedding_variable("user", 4)
        # Then it is the same, and new ones need another name
        assert again is first and first.name == "scope/user:0"
        assert first.table_handle.op.name.startswith("scope/user/")
        with v1.variable_scope("scope"), pytest.raises(ValueError, match="already exists"):
            ge.get_embedding_variable("user", 4)
        with pytest.raises(ValueError, match="does not exist"), v1.variable_scope("s", reuse=True):
            ge.get_embedding_variable("user", 4)


@pytest.mark.parametrize("parts", [2, 1])
def test_a_partitioner_of_the_scope_is_for_variables(parts):
    # Given a scope that cuts variables
    partitioner = v1.fixed_size_partitioner(parts)
    with tf.Graph().as_default(), v1.variable_scope("scope", partitioner=partitioner) as scope:
        # When a table is made in it
        table = ge.get_embedding_variable("user", 4)
        # Then it is whole, and variables are cut as before
        assert isinstance(table, ge.EmbeddingVariable) and table.name == "scope/user:0"
        assert scope.partitioner is partitioner
        assert len(list(v1.get_variable("dense", [4, 2]))) == parts


@pytest.mark.parametrize(
    "arguments", [{"key_dtype": tf.int32}, {"ev_option": ge.EmbeddingVariableOption(
        filter_option=ge.CounterFilter(3))}, {"embedding_dim": 8}, {"value_dtype": tf.float16}],
    ids=lambda arguments: next(iter(arguments)),
)  # fmt: skip
def test_reuse_as_another(arguments):
    with tf.Graph().as_default(), v1.variable_scope("scope", reuse=v1.AUTO_REUSE):
        ge.get_embedding_variable("user", 4)
        with pytest.raises(ValueError, match="user"):
            ge.get_embedding_variable("user", **{"embedding_dim": 4, **arguments})


def test_reuse_of_a_variable():
    with tf.Graph().as_default(), v1.variable_scope("scope", reuse=v1.AUTO_REUSE):
        v1.get_variable("user", [0, 4], use_resource=True)
        with pytest.raises(ValueError, match="'user': expected an EmbeddingVariable"):
            ge.get_embedding_variable("user", 4)


def test_collections():
    with tf.Graph().as_default():
        # Given tables, trainable or not, of collections
        table = ge.get_embedding_variable("user", 4)
        fixed = ge.get_embedding_variable("fixed", 4, trainable=False)
        own = ge.get_embedding_variable("own", 4, collections=["own"])
        # Then they are where variables are
        assert [v is t for v, t in zip(v1.global_variables(), [table, fixed])] == [True] * 2
        assert [v.name for v in v1.trainable_variables()] == ["user:0", "own:0"]
        assert v1.get_collection("own")[0] is own


def test_custom_getter_and_initializer_of_the_scope():
    seen = []

    def custom_getter(getter, name, *args, **kwargs):
        seen.append(name)
        return getter(name, *args, **kwargs)

    with tf.Graph().as_default(), v1.Session() as session:
        # Given a scope with an initializer and a regularizer of variables
        with v1.variable_scope(
            "scope", initializer=v1.constant_initializer(3.0), regularizer=tf.nn.l2_loss
        ):
            # When a table is made, by a custom getter
            table = ge.get_embedding_variable("user", 4, custom_getter=custom_getter)
        session.run(v1.global_variables_initializer())
        # Then it starts as the scope's variables do, and nothing regularizes it
        assert seen == ["scope/user"]
        rows = session.run(tf.gather(table, np.array([5])))
        np.testing.assert_array_equal(rows, np.full([1, 4], 3.0))
        assert not v1.get_collection(v1.GraphKeys.REGULARIZATION_LOSSES)


def test_initialized_or_not():
    with tf.Graph().as_default(), v1.Session() as session:
        # Given a table that is not initialized
        table = ge.get_embedding_variable("user", 4)
        rows = tf.gather(table, np.array([5]))
        report = v1.report_uninitialized_variables()
        # When it is read, Then the error names it
        assert session.run(report).tolist() == [b"user"]
        with pytest.raises(tf.errors.FailedPreconditionError, match="'user'.*initializer"):
            session.run(rows)
        # When it is initialized, Then it is read; and again: it is empty
        session.run(v1.global_variables_initializer())
        assert session.run(report).size == 0 and session.run(rows).shape == (1, 4)
        session.run(table.insert([1], np.ones([1, 4])))
        session.run(table.initializer)
        assert session.run(table.total_count()) == 0


def test_eager_tables_of_one_name_are_two():
    first, second = (ge.get_embedding_variable("user", 2) for _ in range(2))
    first.insert([1], [[1.0, 2.0]])
    assert [int(t.total_count()) for t in (first, second)] == [1, 0]


def test_tracked():
    module = tf.Module()
    module.table = ge.get_embedding_variable("user", 2)
    assert [v is module.table for v in module.trainable_variables] == [True]


def test_made_inside_of_a_function():
    made = []

    @tf.function
    def read():
        if not made:
            made.append(ge.get_embedding_variable("user", 2, initializer=tf.ones_initializer()))
        return tf.gather(made[0], tf.constant([3], tf.int64))

    np.testing.assert_array_equal(read(), [[1, 1]])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"regularizer": tf.nn.l2_loss}, "regularizer has no meaning"),
        ({"caching_device": "/CPU:0"}, "caching_device has no meaning"),
        ({"constraint": tf.nn.relu}, "constraint has no meaning"),
        ({"init_data_source": "file"}, "init_data_source has no meaning"),
        ({"validate_shape": False}, "expected validate_shape=True"),
        ({"embedding_dim": 0}, "expected an embedding_dim from 1 to 4096, got 0"),
        ({"embedding_dim": 4097}, "expected an embedding_dim from 1 to 4096, got 4097"),
        ({"steps_to_live": 0}, "expected steps_to_live to be an int of at least 1, got 0"),
        ({"key_dtype": tf.string}, "expected key_dtype to be one of int32, int64, uint32, uint64"),
        ({"value_dtype": tf.float64}, "expected value_dtype to be one of float32"),
        ({"initializer": np.ones([3, 2], np.float32)}, "expected initial values of shape"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refused_arguments(arguments, message):
    with pytest.raises(ValueError, match=f"table 'user': {message}"):
        ge.get_embedding_variable("user", **{"embedding_dim": 2, **arguments})


def test_refused_options():
    option = ge.EmbeddingVariableOption(storage_option=ge.StorageOption(storage_size=[1, 1]))
    with pytest.raises(ValueError, match="table 'user': expected storage_size of one tier"):
        ge.get_embedding_variable("user", 2, ev_option=option)
    with pytest.raises(TypeError, match="expected ev_option to be an EmbeddingVariableOption"):
        ge.get_embedding_variable("user", 2, ev_option=ge.InitializerOption())


def test_no_tensor_of_all_rows():
    table = ge.get_embedding_variable("user", 2)
    with pytest.raises(TypeError, match="table 'user'.*no tensor of all its rows"):
        tf.convert_to_tensor(table)


@pytest.mark.parametrize(
    "placement, message",
    [
        ("replicated", "user': expected another placement than 'replicated'"),
        ("localized:2", "user': expected placement to name a rank below 2, got 'localized:2'"),
        ("here", "user': expected placement to be 'distributed'"),
    ],
)
def test_placements_that_keys_cannot_have_are_refused(monkeypatch, placement, message):
    two_ranks = types.SimpleNamespace(num_ranks=2, rank=0, placement="distributed", strategy=None)
    monkeypatch.setattr(ge.exchange.active, "_of_process", [two_ranks])

    with pytest.raises(ValueError, match=message):
        ge.get_embedding_variable("user", 4, placement=placement)


def test_a_strategy_that_nothing_follows_is_refused():
    storage = ge.StorageOption(ge.StorageType.DRAM, cache_strategy=ge.CacheStrategy.LRU)
    option = ge.EmbeddingVariableOption(storage_option=storage)

    with pytest.raises(ValueError, match="table 'user': expected no cache_strategy.*got LRU"):
        ge.get_embedding_variable("user", 4, ev_option=option)
