"""The cases that DeepRec publishes for its group lookup, with its figures."""

import numpy as np
import pytest
import tensorflow as tf
from support.oracles import lookups as oracle

import group_embedding as ge


@pytest.mark.parametrize("use_resource", [False, True])
def test_ones_of_two_dims_with_adagrad(use_resource):
    # Given tables of ones, of dim 8 and 16, and a sample with two ids
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tables = [
            tf.compat.v1.get_variable(
                f"table_{dim}",
                [10, dim],
                initializer=tf.ones_initializer(),
                use_resource=use_resource,
            )
            for dim in (8, 16)
        ]
        ids = tf.SparseTensor(
            [[0, 0], [1, 0], [2, 0], [2, 1], [3, 0]], tf.constant([1, 1, 3, 4, 5], tf.int64), [4, 2]
        )
        # When they are looked up by mean and by sum, before and after a step of Adagrad
        mean, total = ge.group_embedding_lookup_sparse(tables, [ids, ids], ["mean", "sum"])
        loss = tf.reduce_mean(mean) + tf.reduce_mean(total)
        train = tf.compat.v1.train.AdagradOptimizer(0.1).minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        mean_value, total_value = session.run([mean, total])
        session.run(train)
        trained = session.run(tables)
    # Then the sum of the third sample is 2, all else is 1, and looked-up rows have moved
    np.testing.assert_array_equal(mean_value, np.ones([4, 8]))
    np.testing.assert_array_equal(total_value, np.ones([4, 16]) * [[1], [1], [2], [1]])
    for table in trained:
        moved = (table != 1).all(axis=1)
        assert moved.tolist() == [row in (1, 3, 4, 5) for row in range(10)]


@pytest.mark.parametrize("combiner", ["sqrtn", "mean", "sum"])
def test_two_lookups_forward_and_backward(combiner):
    # Given ten ids of four samples, looked up in two tables of dim 8
    rows = [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    columns = [0, 1, 0, 1, 2, 0, 1, 2, 0, 1]
    values = tf.constant([3, 1, 4, 5, 7, 3, 12, 12, 15, 4], tf.int64)
    ids = tf.SparseTensor(np.stack([rows, columns], axis=1).astype(np.int64), values, [4, 3])
    tables = [tf.Variable(tf.random.stateless_normal([16, 8], [i, 7])) for i in range(2)]
    # When results and gradients are taken
    with tf.GradientTape(persistent=True) as tape:
        actual = ge.group_embedding_lookup_sparse(tables, [ids, ids], [combiner] * 2)
        expected = [oracle.look_up(table, ids, None, combiner) for table in tables]
        losses = [tf.add_n([tf.reduce_sum(o**2) for o in outs]) for outs in (actual, expected)]
    # Then they are TensorFlow's
    for i in range(2):
        oracle.assert_same(actual[i], expected[i], 1e-6, f"lookup {i}")
    for a, e in zip(tape.gradient(losses[0], tables), tape.gradient(losses[1], tables)):
        oracle.assert_same(oracle.dense(a), oracle.dense(e), 1e-5, "gradient")


def test_five_steps_of_mixed_combiners_over_one_dim():
    # Given four tables of one dim under [mean, sum, mean, sum], trained by both lookups
    generator = np.random.default_rng(4)
    start = [generator.normal(size=[30, 8]).astype(np.float32) for _ in range(4)]
    ids = [
        tf.RaggedTensor.from_row_lengths(generator.integers(0, 30, 12), [3, 0, 5, 4])
        for _ in "1234"
    ]
    combiners = ["mean", "sum", "mean", "sum"]

    def train(look_up):
        tables = [tf.Variable(rows) for rows in start]
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build(tables)
        for _ in range(5):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(out**2) for out in look_up(tables)])
            optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
        return tables

    # When both are trained for five steps
    grouped = train(lambda tables: ge.group_embedding_lookup_sparse(tables, ids, combiners))
    stock = train(
        lambda tables: [oracle.look_up(t, i, None, c) for t, i, c in zip(tables, ids, combiners)]
    )
    # Then the tables agree to 1e-5
    for a, e in zip(grouped, stock):
        oracle.assert_same(a, e, 1e-5, "table")
