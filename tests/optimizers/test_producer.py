"""Which ops a step has: one fused update per group, or one update of all slices."""

import numpy as np
import pytest
import tensorflow as tf
from support.cases import optimizer_cases as cases

import group_embedding as ge

IDS = tf.ragged.constant([[0, 1, 1], [2]], dtype=tf.int64)


def wrapped(**options):
    return ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1, **options))


def test_one_fused_op_and_no_gradient_op():
    # Given a model whose tables are in one group
    batches = cases.make_batches(1)
    step = cases.make_step(wrapped(), batches, cases.make_variables())
    # When its step is traced
    ops = cases.step_ops(step)
    # Then it runs one update and no gradient op
    assert [
        ops.count(op) for op in ("GroupEmbedding>GroupUpdate", "GroupEmbedding>GroupUpdateSlices")
    ] == [1, 0]
    assert "GroupEmbedding>GroupLookupGrad" not in ops


def test_stock_optimizer_still_runs_the_gradient_op():
    # Given, When the same with a stock optimizer
    batches = cases.make_batches(1)
    stock = tf.keras.optimizers.Adagrad(0.1)
    ops = cases.step_ops(cases.make_step(stock, batches, cases.make_variables()))
    # Then gradients are computed as before
    assert (
        ops.count("GroupEmbedding>GroupLookupGrad") == 1 and "GroupEmbedding>GroupUpdate" not in ops
    )


def test_v1_graph_has_one_fused_op():
    # Given a graph of TensorFlow 1, whose optimizer gates the gradients
    with tf.Graph().as_default() as graph:
        variables = [tf.compat.v1.get_variable(f"t{i}", [9, 3]) for i in range(2)]
        ids = tf.sparse.from_dense([[1, 2], [3, 0]])
        outputs = ge.group_embedding_lookup_sparse(variables, [ids, ids], "sum")
        loss = tf.reduce_sum(outputs[0] * outputs[1])
        # When it trains
        optimizer = ge.optimizers.wrap(tf.compat.v1.train.AdagradOptimizer(0.1))
        train = optimizer.minimize(loss)
        # Then what train needs is one update without a gradient op
        needed = tf.compat.v1.graph_util.extract_sub_graph(graph.as_graph_def(), [train.name])
    ops = [node.op for node in needed.node]
    assert (
        ops.count("GroupEmbedding>GroupUpdate") == 1 and "GroupEmbedding>GroupLookupGrad" not in ops
    )


@pytest.mark.parametrize(
    "what, options, change",
    [
        ("clipnorm", {"clipnorm": 0.1}, None),
        ("identity", {}, lambda gradients: [tf.nest.map_structure(tf.identity, gradients[0])]),
        (
            "scaled",
            {},
            lambda gradients: [tf.IndexedSlices(gradients[0].values * 2, gradients[0].indices)],
        ),
    ],
)
def test_touched_gradients_are_applied_as_slices(what, options, change):
    # Given a table whose gradient goes through other ops
    table = tf.Variable(tf.ones([4, 2]))
    optimizer = wrapped(**options)

    @tf.function
    def step(_):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ge.group_embedding_lookup_sparse([table], [IDS], "sum")[0])
        gradients = tape.gradient(loss, [table])
        optimizer.apply_gradients(zip(change(gradients) if change else gradients, [table]))

    # When the step is traced
    ops = cases.step_ops(step)
    # Then the gradient op runs, once, and its slices are applied
    assert [
        ops.count(op)
        for op in (
            "GroupEmbedding>GroupUpdate",
            "GroupEmbedding>GroupUpdateSlices",
            "GroupEmbedding>GroupLookupGrad",
        )
    ] == [
        0,
        1,
        1,
    ], what


def test_returned_gradients_are_computed_once():
    # Given a step that also returns a table's gradient
    table = tf.Variable(tf.ones([4, 2]))
    optimizer = wrapped()

    @tf.function
    def step(_):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ge.group_embedding_lookup_sparse([table], [IDS], "sum")[0])
        gradient = tape.gradient(loss, table)
        optimizer.apply_gradients([(gradient, table)])
        return gradient

    # When it runs
    gradient = step(tf.constant(0))
    # Then the gradient is right, and so is the table: rows 0, 1, 2 have accumulators 1.1, 4.1, 1.1
    np.testing.assert_array_equal(gradient.values, [[1, 1], [2, 2], [1, 1]])
    expected = 1 - 0.1 * np.array([1, 2, 1, 0]) / np.sqrt([1.1, 4.1, 1.1, 0.1])
    np.testing.assert_allclose(table.numpy()[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_table_used_twice(groups, traced):
    # Given a table looked up twice, in one group or in two, and another in the first group
    def train(optimizer, as_dense=False):
        table, other = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([4, 3]))
        more = tf.ragged.constant([[1], [3]], dtype=tf.int64)

        def step(_):
            with tf.GradientTape() as tape:
                if groups == 1:
                    a, b, c = ge.group_embedding_lookup_sparse(
                        [table, other, table], [IDS, IDS, more], "sum"
                    )
                else:
                    a, b = ge.group_embedding_lookup_sparse([table, other], [IDS, IDS], "sum")
                    (c,) = ge.group_embedding_lookup_sparse([table], [more], "sum")
                loss = tf.reduce_sum(a * c) + tf.reduce_sum(b**2)
            gradients = tape.gradient(loss, [table, other])
            if as_dense:
                gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            optimizer.apply_gradients(zip(gradients, [table, other]))

        step = tf.function(step) if traced else step
        for i in range(3):
            step(tf.constant(i))
        return step, [table.numpy(), other.numpy()]

    # When it is trained for three steps; stock, of Keras 3, takes a row's gradients one by one
    _, expected = train(tf.keras.optimizers.Adagrad(0.1), as_dense=True)
    step, values = train(wrapped())
    # Then each row has moved once a step, by the sum of its gradients
    cases.assert_close(values, expected, 1e-6)
    if traced:
        ops = cases.step_ops(step)
        fused, slices, gradient_ops = (1, 0, 0) if groups == 1 else (0, 1, 2)
        assert ops.count("GroupEmbedding>GroupUpdate") == fused
        assert ops.count("GroupEmbedding>GroupUpdateSlices") == slices
        assert ops.count("GroupEmbedding>GroupLookupGrad") == gradient_ops


def test_two_groups_are_two_fused_ops():
    # Given tables of two dtypes, which two groups look up
    tables = [tf.Variable(tf.ones([4, 2], dtype)) for dtype in (tf.float32, tf.bfloat16)]
    optimizer = wrapped()

    @tf.function
    def step(_):
        with tf.GradientTape() as tape:
            outputs = ge.group_embedding_lookup_sparse(tables, [IDS, IDS], "sum")
            loss = tf.add_n([tf.reduce_sum(tf.cast(output, tf.float32)) for output in outputs])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    # When the step runs
    step(tf.constant(0))
    # Then each was updated by an op of its own
    assert cases.step_ops(step).count("GroupEmbedding>GroupUpdate") == 2
    np.testing.assert_allclose(tables[0], tf.cast(tables[1], tf.float32), atol=4e-3)


def test_weights_that_are_trained_read_rows_before_they_change():
    # Given weights of ids with a gradient, which is that of the rows before the step
    table, weights = tf.Variable(tf.ones([4, 2])), tf.Variable([1.0, 2.0, 3.0])
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.5))
    ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], tf.constant([1, 2, 1], tf.int64), [2, 2])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            sp_weights = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
            (output,) = ge.group_embedding_lookup_sparse(
                [table], [ids], "sum", sp_weights=[sp_weights]
            )
            loss = tf.reduce_sum(output)
        variables = [table, weights]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    # When a step is taken
    step()
    # Then both moved by their gradients
    np.testing.assert_allclose(weights, [0, 1, 2])
    np.testing.assert_allclose(table[:, 0], [1, -1, 0, 1])


def test_gradient_accumulation():
    # Given gradients of two batches that are added up before they are applied
    batches = cases.make_batches(6)

    def train(optimizer, as_dense=False):
        variables = cases.make_variables()

        @tf.function
        def step(i):
            gradients = []
            for place in (2 * i, 2 * i + 1):
                with tf.GradientTape() as tape:
                    loss = cases.loss_of(variables, batches.at(place))
                gradients.append(tape.gradient(loss, variables))
            summed = [
                tf.IndexedSlices(
                    tf.concat([a.values, b.values], 0),
                    tf.concat([a.indices, b.indices], 0),
                    a.dense_shape,
                )
                if isinstance(a, tf.IndexedSlices)
                else a + b
                for a, b in zip(*gradients)
            ]
            if as_dense:
                summed = [tf.convert_to_tensor(gradient) for gradient in summed]
            optimizer.apply_gradients(zip(summed, variables))

        for i in range(3):
            step(tf.constant(i))
        return cases.values_of(variables)

    # When they are
    expected, values = train(tf.keras.optimizers.Adagrad(0.1), True), train(wrapped())
    # Then a row that both looked up moves once
    cases.assert_close(values, expected, 1e-6)
