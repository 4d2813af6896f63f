"""max_norm: one table read with several in a call, and rows that are not finite."""

import numpy as np
import pytest
import tensorflow as tf
from support.oracles import lookups as oracle

import group_embedding as ge

ROWS = np.random.default_rng(4).normal(size=(9, 4)).astype(np.float32)
IDS = [
    tf.ragged.constant(ids, dtype=tf.int64)
    for ids in ([[5, 1], [3]], [[1], [8, 3]], [[7, 1], []], [[2], [2]])
]
COMBINERS = ["sum", "mean", "sum", "sqrtn"]


def eager(function):
    return function


@pytest.mark.parametrize("run", [eager, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("first, second", [(None, 0.9), (0.5, 0.9)])
def test_a_table_read_with_several_max_norms_has_one_gradient(run, first, second):
    # Given two tables, of which one is read with two max_norms, twice with one of them
    tables = [tf.Variable(ROWS, name=name) for name in ("shop", "user")]
    params = [tables[0]] * 3 + [tables[1]]
    max_norms = [first, second, first, None]

    def gradients(look_up):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(out**2) for out in look_up()])
        return tape.gradient(loss, tables)

    # When gradients are taken of one call, and of TensorFlow's lookups
    actual = run(gradients)(
        lambda: ge.group_embedding_lookup_sparse(params, IDS, COMBINERS, max_norm=max_norms)
    )
    expected = gradients(
        lambda: [
            oracle.look_up(table, ids, None, combiner, norm)
            for table, ids, combiner, norm in zip(params, IDS, COMBINERS, max_norms)
        ]
    )
    # Then rows are unique and ascending, so that norms are those of the dense gradients
    for of_ours, of_stock in zip(actual, expected):
        oracle.assert_unique_and_sorted(of_ours, "gradient")
        oracle.assert_same(oracle.dense(of_ours), oracle.dense(of_stock), 1e-5, "gradient")
    norm = tf.linalg.global_norm([oracle.dense(gradient) for gradient in expected])
    np.testing.assert_allclose(tf.linalg.global_norm(actual), norm, rtol=1e-5)


def test_a_session_has_one_gradient_too():
    # Given a graph of TensorFlow 1 in which a table is read with two max_norms
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.compat.v1.get_variable("t", initializer=ROWS, use_resource=True)
        found = ge.group_embedding_lookup_sparse(
            [table, table], [tf.sparse.from_dense([[1, 3]])] * 2, "sum", max_norm=[None, 0.9]
        )
        # When its gradient is taken
        (gradient,) = tf.gradients(tf.add_n(found), [table])
        session.run(tf.compat.v1.global_variables_initializer())
        indices = session.run(gradient.indices)
    # Then each row is there once
    assert indices.tolist() == [1, 3]


@pytest.mark.parametrize("by_key", [False, True], ids=["rows", "keys"])
@pytest.mark.parametrize("limit", ["clipnorm", "global_clipnorm"])
def test_training_with_clipped_norms(limit, by_key):
    # Given a table that is read without and with max_norm, by a wrapped optimizer that clips
    start = tf.Variable(ROWS)
    table = tf.Variable(ROWS)
    if by_key:
        table = ge.get_embedding_variable(
            f"{limit}_keys",
            4,
            initializer=lambda shape, dtype=None: tf.constant(ROWS),
            ev_option=ge.EmbeddingVariableOption(
                init_option=ge.InitializerOption(default_value_dim=len(ROWS))
            ),
        )
    wrapped = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.5, **{limit: 0.3}))
    stock = tf.keras.optimizers.SGD(0.5, **{limit: 0.3})

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            found = ge.group_embedding_lookup_sparse(
                [table] * 3, IDS[:3], "sum", max_norm=[None, 0.9, 0.7]
            )
            loss = tf.add_n([tf.reduce_sum(out**2) for out in found])
        wrapped.apply_gradients([(tape.gradient(loss, table), table)])

    def stock_step():
        with tf.GradientTape() as tape:
            limits = zip(IDS[:3], [None, 0.9, 0.7])
            found = [oracle.look_up(start, ids, None, "sum", norm) for ids, norm in limits]
            loss = tf.add_n([tf.reduce_sum(out**2) for out in found])
        gradient = oracle.dense(tape.gradient(loss, start))
        stock.apply_gradients([(gradient, start)])

    # When both take three steps
    for _ in range(3):
        step()
        stock_step()
    # Then the rows are those of the stock optimizer
    actual = ROWS.copy()
    if by_key:
        found = table.export()
        actual[found.keys.numpy()] = found.values.numpy()
    else:
        actual = table.numpy()
    np.testing.assert_allclose(actual, start.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_scaled_as_tensorflow_does(bad):
    # Given two tables with a row of which one column is not finite
    rows = ROWS.copy()
    rows[3, 1] = bad
    tables = [tf.Variable(rows), tf.Variable(rows[:, :2])]
    ids = [tf.ragged.constant([[3], [1], [1, 3]]), tf.ragged.constant([[3], [2], [2]])]
    # When they are read under max_norm
    actual = ge.group_embedding_lookup_sparse(tables, ids, ["sum", "mean"], max_norm=1.0)
    expected = [
        oracle.look_up(*lookup, 1.0) for lookup in zip(tables, ids, [None] * 2, ["sum", "mean"])
    ]
    # Then NaN is where TensorFlow has it, in whole rows
    for ours, stock in zip(actual, expected):
        np.testing.assert_allclose(ours, stock, rtol=1e-6)
        assert not np.isfinite(ours).all()
