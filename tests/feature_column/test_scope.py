"""Which columns become members of a group, and what stays stock about them."""

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.feature_column import feature_column as stock_v1
from tensorflow.python.feature_column import feature_column_v2 as stock
from tensorflow.python.feature_column import serialization

from group_embedding.feature_column import group_embedding_column_scope

STOCK_CLASSES = (
    stock.EmbeddingColumn,
    stock.SharedEmbeddingColumn,
    stock_v1._SharedEmbeddingColumn,
)


def group_of(column):
    return getattr(column, "_group", None)


def test_every_factory_of_embedding_columns_makes_members(make):
    # given
    categorical = [make.identity("a"), make.identity("c")]
    with tf.Graph().as_default(), group_embedding_column_scope():
        # when
        columns = [
            tf.feature_column.embedding_column(categorical[0], 4),
            tf.compat.v1.feature_column.embedding_column(categorical[1], 4),
            *tf.feature_column.shared_embeddings(categorical, 4),
            *tf.compat.v1.feature_column.shared_embedding_columns(categorical, 4),
        ]
    # then all are of one group, and still instances of the stock classes
    assert group_of(columns[0]) is not None
    assert {group_of(column) for column in columns} == {group_of(columns[0])}
    assert all(isinstance(column, STOCK_CLASSES) for column in columns)


def test_other_columns_are_left_alone(make):
    # given
    class Derived(stock.EmbeddingColumn):
        pass

    def columns():
        return [
            make.price(),
            make.identity("a"),
            make.weighted(),
            tf.feature_column.indicator_column(make.identity("a")),
            tf.feature_column.bucketized_column(make.price(), [1.0]),
            tf.feature_column.crossed_column(["a", "c"], 10),
            Derived(*make.a()),
        ]

    outside = columns()
    # when
    with group_embedding_column_scope():
        inside = columns()
    # then
    assert [type(column) for column in inside] == [type(column) for column in outside]


def test_a_column_belongs_to_the_innermost_scope(make):
    # given / when
    with group_embedding_column_scope("outer"):
        before = make.a()
        with group_embedding_column_scope("inner"):
            inner = make.b()
        after = make.c()
    # then
    assert group_of(before) is group_of(after)
    assert group_of(inner) is not group_of(before)
    assert (group_of(before).name, group_of(inner).name) == ("outer", "inner")


def test_scopes_of_one_name_are_two_groups(make):
    # given / when
    groups = []
    for _ in range(2):
        with group_embedding_column_scope("again"):
            groups.append(group_of(make.a()))
    # then
    assert groups[0] is not groups[1]


@pytest.mark.parametrize("error", [None, KeyError("in the body")])
def test_nothing_made_after_the_scope_is_affected(make, error):
    # given a scope that ends, well or not
    before = [vars(stock_class).get("__init__") for stock_class in STOCK_CLASSES]
    try:
        with group_embedding_column_scope():
            if error:
                raise error
    except KeyError:
        pass
    # when
    column = make.a()
    # then the column is stock, and so is TensorFlow
    assert type(column) is stock.EmbeddingColumn
    assert [vars(stock_class).get("__init__") for stock_class in STOCK_CLASSES] == before


def test_a_scope_is_of_its_thread(make):
    # given a scope that is open in this thread
    columns = {}

    def outside():
        columns["outside"] = make.a()

    def inside():
        with group_embedding_column_scope():
            columns["inside"] = make.a()

    with group_embedding_column_scope():
        # when others make columns
        threads = [threading.Thread(target=outside), threading.Thread(target=inside)]
        for thread in threads:
            thread.start()
            thread.join()
        mine = make.a()
    # then
    assert type(columns["outside"]) is stock.EmbeddingColumn
    assert group_of(columns["inside"]) not in (None, group_of(mine))


def test_scopes_opened_and_closed_by_a_hundred_threads_at_once(make):
    # given threads that are in and out of scopes, at the same time
    errors = []
    start = threading.Barrier(100)

    def work(index):
        start.wait()
        for _ in range(20):
            if index % 2:
                with group_embedding_column_scope(f"group_{index}"):
                    name = group_of(make.a()).name
                if name != f"group_{index}":
                    errors.append((index, name))
            elif group_of(make.a()) is not None:
                errors.append((index, "not in a scope"))

    # when
    threads = [threading.Thread(target=work, args=(index,)) for index in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # then
    assert not errors
    assert type(make.a()) is stock.EmbeddingColumn


@pytest.mark.parametrize("name", ["with space", "", "_hidden", "a:0"])
def test_a_name_that_is_no_scope_name_is_refused(name):
    with (
        pytest.raises(ValueError, match=f"group_embedding_column_scope: expected .* got {name!r}"),
        group_embedding_column_scope(name),
    ):
        pass


def test_a_grouped_column_equals_the_stock_one(make):
    # given two columns of the same fields
    parts = (make.identity("a"), 4)
    initializer = make.fixed(1)
    expected = tf.feature_column.embedding_column(*parts, initializer=initializer)
    # when
    with group_embedding_column_scope():
        column = tf.feature_column.embedding_column(*parts, initializer=initializer)
    # then
    assert column == expected
    assert expected == column
    assert hash(column) == hash(expected)
    assert {expected: 1}[column] == 1
    assert repr(column) == repr(expected)
    assert type(column).__name__ == "EmbeddingColumn"
    assert column != expected._replace(dimension=5)


def test_copies_stay_in_the_group(make):
    # given
    with tf.Graph().as_default(), group_embedding_column_scope():
        embedding = make.a()
        shared = tf.feature_column.shared_embeddings([make.identity("a"), make.identity("c")], 4)
    # when
    copies = [
        copy.copy(embedding),
        copy.deepcopy(embedding),
        embedding._replace(max_norm=1.0),
        embedding._make(embedding),
        tf.nest.map_structure(lambda field: field, embedding),
        *copy.deepcopy({"params": shared})["params"],
    ]
    # then
    assert {group_of(column) for column in copies} == {group_of(embedding)}
    assert copies[2].max_norm == 1.0
    # and columns copied together still share their table
    assert copies[-1].shared_embedding_column_creator is copies[-2].shared_embedding_column_creator
    assert (
        copies[-1].shared_embedding_column_creator is not shared[0].shared_embedding_column_creator
    )


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_holds_the_stock_column(make, protocol):
    # given
    with group_embedding_column_scope():
        column = make.a(dim=6, initializer=tf.compat.v1.zeros_initializer())
    # when
    pickled = pickle.dumps(column, protocol)
    # then
    assert b"group_embedding." not in pickled
    restored = pickle.loads(pickled)
    assert type(restored) is stock.EmbeddingColumn
    assert restored[:3] == column[:3]
    # and read back inside a scope, it is a member again
    with group_embedding_column_scope():
        assert group_of(pickle.loads(pickled)) not in (None, group_of(column))


def test_a_config_holds_the_stock_column(make):
    # given
    kwargs = {"dim": 6, "initializer": tf.compat.v1.ones_initializer()}
    with group_embedding_column_scope():
        column = make.a(**kwargs)
    # when
    config = serialization.serialize_feature_column(column)
    # then
    assert config == serialization.serialize_feature_column(make.a(**kwargs))
    assert config["class_name"] == "EmbeddingColumn"
    assert type(serialization.deserialize_feature_column(config)) is stock.EmbeddingColumn
    with group_embedding_column_scope():
        assert group_of(serialization.deserialize_feature_column(config)) is not None


def test_a_group_lives_no_longer_than_its_columns_and_a_result_than_its_call(make):
    # given a group that has served a call
    with tf.Graph().as_default():
        with group_embedding_column_scope():
            columns = [make.a(), make.b()]
        tf.compat.v1.feature_column.input_layer(make.features(), columns)
        group = weakref.ref(group_of(columns[0]))
        # when the call is over, and then the columns are gone
        gc.collect()
        assert len(group()._waiting) == 0
    del columns
    gc.collect()
    # then
    assert group() is None


def test_parsing_specifications_are_as_without_the_scope(make):
    # given
    expected = tf.feature_column.make_parse_example_spec([make.a(), make.d()])
    # when
    with group_embedding_column_scope():
        columns = [make.a(), make.d()]
    # then
    assert tf.feature_column.make_parse_example_spec(columns) == expected
    assert tf.compat.v1.feature_column.make_parse_example_spec(columns) == expected


@pytest.mark.parametrize("shared_columns", [False, True], ids=["own columns", "one set of columns"])
def test_eight_threads_each_with_a_graph(make, shared_columns):
    # given
    def columns():
        with group_embedding_column_scope():
            return [make.a(), make.b(), make.c()]

    one_set = columns()
    features = make.features
    expected = tf.compat.v1.feature_column.input_layer(
        features(), [make.a(), make.b(), make.c()]
    ).numpy()
    outputs = [None] * 8
    start = threading.Barrier(8)

    def work(index):
        start.wait()
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            output = tf.compat.v1.feature_column.input_layer(
                features(), one_set if shared_columns else columns()
            )
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(tf.compat.v1.tables_initializer())
            outputs[index] = session.run(output)

    # when
    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # then
    for output in outputs:
        np.testing.assert_allclose(output, expected, rtol=1e-6)
