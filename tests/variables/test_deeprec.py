"""The cases that DeepRec publishes for its group lookup, on EmbeddingVariables."""

import numpy as np
import pytest
import tensorflow as tf
from support.oracles import lookups as oracle

import group_embedding as ge

v1 = tf.compat.v1


def test_ones_of_two_dims_with_adagrad():
    # Given tables of ones, of dim 8 and 16, and a sample with two ids
    with tf.Graph().as_default(), v1.Session() as session:
        tables = [
            ge.get_embedding_variable(f"table_{dim}", dim, initializer=tf.ones_initializer())
            for dim in (8, 16)
        ]
        ids = tf.SparseTensor(
            [[0, 0], [1, 0], [2, 0], [2, 1], [3, 0]], tf.constant([1, 1, 3, 4, 5], tf.int64), [4, 2]
        )
        # When they are looked up by mean and by sum, before and after a step of Adagrad
        mean, total = ge.group_embedding_lookup_sparse(tables, [ids, ids], ["mean", "sum"])
        loss = tf.reduce_mean(mean) + tf.reduce_mean(total)
        train = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1)).minimize(loss)
        exports = [table.export() for table in tables]
        session.run(v1.global_variables_initializer())
        mean_value, total_value = session.run([mean, total])
        session.run(train)
        exported = session.run(exports)
    # Then the sum of the third sample is 2, all else is 1, and looked-up keys have moved
    np.testing.assert_array_equal(mean_value, np.ones([4, 8]))
    np.testing.assert_array_equal(total_value, np.ones([4, 16]) * [[1], [1], [2], [1]])
    for table in exported:
        assert table.keys.tolist() == [1, 3, 4, 5]
        assert (table.values < 1).all()


@pytest.mark.parametrize("combiner", ["sqrtn", "mean", "sum"])
def test_two_lookups_forward_and_backward(combiner):
    # Given ten ids of four samples, looked up in two tables of dim 8
    rows = [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    columns = [0, 1, 0, 1, 2, 0, 1, 2, 0, 1]
    keys = [3, 1, 4, 5, 7, 3, 12, 12, 15, 4]
    ids = tf.SparseTensor(
        np.stack([rows, columns], axis=1).astype(np.int64), tf.constant(keys, tf.int64), [4, 3]
    )
    variables = [tf.Variable(tf.random.stateless_normal([16, 8], [i, 7])) for i in range(2)]
    tables = [ge.get_embedding_variable(f"table_{i}", 8) for i in range(2)]
    for table, variable in zip(tables, variables):
        table.insert(np.arange(16), variable)
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))
    # When they are looked up and a step of SGD is taken, and when variables are
    with tf.GradientTape(persistent=True) as tape:
        actual = ge.group_embedding_lookup_sparse(tables, [ids, ids], [combiner] * 2)
        expected = [oracle.look_up(v, ids, None, combiner) for v in variables]
    optimizer.apply_gradients(zip(tape.gradient(actual, tables), tables))
    gradients = tape.gradient(expected, variables)
    # Then results and rows agree to 1e-4
    for a, e in zip(actual, expected):
        oracle.assert_same(a, e, 1e-4, "output")
    for table, variable, gradient in zip(tables, variables, gradients):
        trained = variable - oracle.dense(gradient)
        oracle.assert_same(table.export().values, trained, 1e-4, "table")


def test_variables_and_tables_agree_after_five_steps():
    # Given two tables and two variables of one dim under [mean, sum, mean, sum], with the same rows
    generator = np.random.default_rng(4)
    start = [generator.normal(size=[30, 8]).astype(np.float32) for _ in range(4)]
    lengths = [3, 0, 5, 4]
    ids = [tf.RaggedTensor.from_row_lengths(generator.integers(0, 30, 12), lengths) for _ in "1234"]

    def train(tables):
        optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))
        for _ in range(5):
            with tf.GradientTape() as tape:
                outputs = ge.group_embedding_lookup_sparse(
                    tables, ids, ["mean", "sum", "mean", "sum"]
                )
                loss = tf.add_n([tf.reduce_sum(output**2) for output in outputs])
            optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    mixed = [
        ge.get_embedding_variable(f"t{i}", 8) if i < 2 else tf.Variable(start[i]) for i in range(4)
    ]
    for table, rows in zip(mixed[:2], start):
        table.insert(np.arange(30), rows)
    variables = [tf.Variable(rows) for rows in start]
    # When both are trained for five steps
    train(mixed)
    train(variables)
    # Then they agree to 1e-5
    actual = [mixed[0].export().values, mixed[1].export().values, *mixed[2:]]
    for a, e in zip(actual, variables):
        oracle.assert_same(a, e, 1e-5, "table")
