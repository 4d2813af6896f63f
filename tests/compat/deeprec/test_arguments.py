"""Arguments that DeepRec's functions have, taken as DeepRec takes them."""

import logging

import numpy as np
import pytest
import tensorflow as tf2

import group_embedding as ge
from group_embedding.variables import get_variable

v1 = tf2.compat.v1


@pytest.fixture
def notes(caplog):
    get_variable.note_one_piece.cache_clear()
    caplog.set_level(logging.WARNING)
    return caplog


def test_a_table_is_one_piece_and_says_so_once(tf, notes):
    # Given a partitioner, as DeepRec's scripts have one for each table
    partitioner = tf.fixed_size_partitioner(num_shards=4)
    # When two tables are made with it
    tables = [tf.get_embedding_variable(n, 2, partitioner=partitioner) for n in ("user", "item")]
    # Then each is one EmbeddingVariable, and one warning says so
    assert all(isinstance(table, ge.EmbeddingVariable) for table in tables)
    assert [record.message.split(":")[0] for record in notes.records] == ["partitioner"]


def test_a_column_of_pieces_says_so(tf, notes):
    # Given a number of pieces
    # When a column of keys is made with it
    column = tf.feature_column.categorical_column_with_embedding("user", tf.int64, partition_num=4)
    # Then it is made, and a warning says that its table is one piece
    assert column.name == "user"
    assert [record.message.split(":")[0] for record in notes.records] == ["partition_num"]


@pytest.mark.parametrize(
    "option, expected",
    [
        (None, (5, None)),
        (ge.EmbeddingVariableOption(ht_partition_num=20), (5, None)),
        (ge.EmbeddingVariableOption(evict_option=ge.L2WeightEvict(0.5)), (None, 1.0)),
    ],
)
def test_steps_to_live_is_of_the_table_unless_its_option_says_what(tf, option, expected):
    # Given an option with or without an eviction
    # When a table is made with it and steps_to_live
    table = tf.get_embedding_variable("user", 2, ev_option=option, steps_to_live=5)
    # Then the option counts first
    assert (table.options.evict_after_steps, table.options.evict_below_norm) == expected


def test_initializer_of_the_option_counts_first(tf):
    # Given two initializers
    option = tf.EmbeddingVariableOption(init_option=tf.InitializerOption(tf.zeros_initializer()))
    # When a table is made with both, and another one with a class for an initializer
    tables = [
        tf.get_embedding_variable("user", 2, initializer=tf.ones_initializer(), ev_option=option),
        tf.get_embedding_variable("item", 2, initializer=tf.ones_initializer),
    ]
    rows = [tf.nn.embedding_lookup(table, tf.constant([3], tf.int64)) for table in tables]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run(rows)
    # Then the option's is the one
    assert [row.tolist() for row in found] == [[[0, 0]], [[1, 1]]]


@pytest.mark.parametrize(
    "signed, unsigned",
    [("int8", "uint8"), ("int16", "uint16"), ("int32", "uint32"), ("int64", "uint64")],
)
def test_counters_of_a_signed_type(tf, signed, unsigned):
    # Given a filter with counters of a signed type, as DeepRec's documents have it
    option = tf.CBFFilter(3, 100, 0.01, getattr(tf, signed))
    # When its type is asked
    # Then it is the unsigned one of its width
    assert option.counter_type == getattr(tf, unsigned)


def test_dynamic_shape_is_that_of_the_keys(tf):
    # Given a table of which three keys are trained
    table = tf.get_embedding_variable("user", 4)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, tf.constant([7, 3, 9, 3], tf.int64)))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    shape = table.get_dynamic_shape()
    # When its shape is asked before and after
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(shape)
        session.run(train)
        after = session.run(shape)
    # Then it has a row for each
    assert (before.tolist(), after.tolist()) == ([0, 4], [3, 4])


@pytest.mark.parametrize(
    "name, path, nearest",
    [
        ("PMEM_MEMKIND", None, "DRAM"),
        ("PMEM_LIBPMEM", "/mnt/pmem", "DRAM"),
        ("DRAM_PMEM", "/mnt/pmem", "DRAM"),
        ("LEVELDB", "/tmp/level", "DRAM_SSDHASH"),
        ("SSDHASH", "/tmp/ssd", "DRAM_SSDHASH"),
        ("DRAM_LEVELDB", "/tmp/level", "DRAM_SSDHASH"),
        ("DRAM_PMEM_SSDHASH", "/tmp/ssd", "DRAM_SSDHASH"),
    ],
)
def test_the_nearest_storage_is_taken(tf, name, path, nearest):
    # Given a storage that is not here
    # When a table is to lie there
    with pytest.warns(UserWarning, match=f"storage_type {name} is not here; {nearest} is taken"):
        option = tf.StorageOption(getattr(tf.StorageType, name), path, [1 << 20, 1 << 20])
    # Then it lies in the nearest one, and on disk where it was to
    assert option.storage_type == getattr(tf.StorageType, nearest)
    assert option.storage_path == (path if nearest == "DRAM_SSDHASH" else None)


@pytest.mark.parametrize("name", ["LEVELDB", "PMEM_LIBPMEM"])
def test_a_table_in_the_nearest_storage(tf, name, tmp_path):
    # Given a table of such a storage
    with pytest.warns(UserWarning):
        storage = tf.StorageOption(getattr(tf.StorageType, name), str(tmp_path), [1 << 20])
    option = tf.EmbeddingVariableOption(storage_option=storage)
    table = tf.get_embedding_variable("user", 2, ev_option=option)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, tf.constant([7, 3], tf.int64)))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    keys = table.export().keys
    # When it is trained
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        found = session.run(keys)
    # Then it has its keys
    assert found.tolist() == [3, 7]


@pytest.mark.parametrize(
    "name",
    [
        "feature_column.categorical_column_with_adaptive_embedding",
        "feature_column.categorical_column_with_multihash",
        "get_dynamic_dimension_embedding_variable",
        "get_multihash_variable",
    ],
)
def test_what_is_not_here_says_what_to_use(tf, name):
    # Given a function of DeepRec for tables in several parts
    function = tf
    for part in name.split("."):
        function = getattr(function, part)
    # When it is called
    # Then the error names what is here
    with pytest.raises(NotImplementedError, match=r"use tf\..*embedding"):
        function("user", hash_buckets_size=10)


@pytest.mark.parametrize("do_fusion, num_fused", [(None, 0), (False, 0), (True, 1), ("v2", 1)])
def test_a_column_is_fused_where_it_is_told(tf, do_fusion, num_fused):
    # Given a column of row numbers outside of all scopes
    category = tf.feature_column.categorical_column_with_identity("item", 10)
    column = tf.feature_column.embedding_column(
        category, 4, initializer=tf.ones_initializer(), do_fusion=do_fusion
    )
    # When it is an input
    ids = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([3, 5], tf.int64), [2, 1])
    output = tf.feature_column.input_layer({"item": ids}, [column])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        value = session.run(output)
    # Then the fused op looks it up, or TensorFlow's do
    assert [op.type for op in output.graph.get_operations()].count(
        "GroupEmbedding>GroupLookup"
    ) == num_fused
    np.testing.assert_array_equal(value, np.ones([2, 4]))


def test_numbers_of_a_strategy_are_methods_too():
    pytest.importorskip("horovod")
    # Given one process
    strategy = ge.CollectiveStrategy()
    # When its numbers are asked in both ways
    # Then they are the same
    assert (
        (strategy.world_size, strategy.rank) == (strategy.world_size(), strategy.rank()) == (1, 0)
    )
    assert [0, 1, 2][strategy.rank : strategy.world_size()] == [0]
