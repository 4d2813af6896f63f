"""Optimizers of DeepRec's `tf.train` train EmbeddingVariables unasked."""

import numpy as np
import pytest
import tensorflow as tf2

import group_embedding as ge

v1 = tf2.compat.v1
OPTIMIZERS = {
    "AdadeltaOptimizer": (0.1,),
    "AdagradOptimizer": (0.1,),
    "AdamOptimizer": (0.1,),
    "FtrlOptimizer": (0.1,),
    "GradientDescentOptimizer": (0.1,),
    "MomentumOptimizer": (0.1, 0.9),
    "RMSPropOptimizer": (0.1,),
}


def make_model(tf):
    """Three tables, two of keys, and their loss."""
    tables = [
        tf.get_embedding_variable("user", 3, initializer=tf.ones_initializer()),
        tf.get_embedding_variable("item", 2, initializer=tf.ones_initializer()),
        tf.get_variable("city", [9, 2], initializer=tf.ones_initializer()),
    ]
    ids = tf.constant([3, 5, 3], tf.int64)
    rows = [tf.nn.embedding_lookup(table, ids) for table in tables]
    return tables, rows, tf.add_n([tf.reduce_sum(row**2) for row in rows])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_trains_all_tables_without_wrap(tf, name):
    # Given a model of tables by key and by row, and the same of variables alone
    tables, rows, loss = make_model(tf)
    stock = [tf.Variable(tf.ones([9, dim])) for dim in (3, 2)]
    ids = tf.constant([3, 5, 3], tf.int64)
    stock_rows = [tf.nn.embedding_lookup(variable, ids) for variable in stock]
    stock_loss = tf.add_n([tf.reduce_sum(row**2) for row in stock_rows])
    # When an optimizer trains one, and stock's the other, two steps
    optimizer = getattr(tf.train, name)(*OPTIMIZERS[name])
    steps = [
        optimizer.minimize(loss, var_list=tables),
        getattr(v1.train, name)(*OPTIMIZERS[name]).minimize(stock_loss, var_list=stock),
    ]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(steps)
        trained, expected = session.run([rows, stock_rows])
    # Then rows are the same
    for table, variable in zip(trained, expected):
        np.testing.assert_allclose(table, variable, rtol=1e-6, atol=1e-6)
        assert (table != 1).all()


def test_variables_that_are_not_keyed_are_trained_as_in_tensorflow(tf):
    # Given a variable of which row 2 is looked up in the first step alone
    table = tf.get_variable("table", [4, 2], initializer=tf.ones_initializer())
    ids = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids))
    train = tf.train.AdamOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {ids: [2]})
        before = session.run(table)
        # When the next step looks up another one
        session.run(train, {ids: [1]})
        after = session.run(table)
    # Then stock's Adam has moved both, as its moments say
    assert (after[2] != before[2]).all()


def test_wrap_takes_an_optimizer_that_trains_them_unasked(tf):
    # Given an optimizer of `tf.train`, wrapped so that steps that overflow are skipped
    (user, _, _), rows, loss = make_model(tf)
    optimizer = ge.optimizers.wrap(tf.train.AdagradOptimizer(0.1), skip_nonfinite=True)
    # When a step's gradients are infinite
    train = optimizer.minimize(loss * float("inf"))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        values = session.run(rows)
    # Then no table has changed
    assert all((value == 1).all() for value in values)


def test_made_in_the_scope_of_a_strategy(tf):
    pytest.importorskip("horovod")
    # Given an optimizer that is made inside of CollectiveStrategy's scope, and columns inside
    strategy = ge.CollectiveStrategy()
    with strategy.scope():
        (user, _, _), _, loss = make_model(tf)
        train = tf.train.AdagradOptimizer(0.1).minimize(loss)
    exported = user.export()
    # When it makes a step
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        keys = session.run(exported.keys)
    # Then it has trained the keys
    assert keys.tolist() == [3, 5]


def test_stock_optimizer_still_names_wrap(tf):
    # Given a keyed table and an optimizer of tf.compat.v1.train, with DeepRec's module imported
    _, _, loss = make_model(tf)
    # When it trains the table
    # Then the error says what to do
    with pytest.raises(TypeError, match=r"use group_embedding\.optimizers\.wrap\(optimizer\)"):
        v1.train.AdagradOptimizer(0.1).minimize(loss)
