"""group_embedding_lookup_sparse against TensorFlow's own lookups, for values and gradients."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracles import lookups as oracle

import group_embedding as ge

TOLERANCE = {tf.float32: 1e-6, tf.float16: 2e-3, tf.bfloat16: 1.6e-2}
DIMS = [1, 2, 3, 4, 7, 8, 13, 16, 24, 32, 40, 64, 96, 100, 128, 257]


@st.composite
def lookups(draw):
    """One lookup as plain data; ids include pruned ones, weights pruned ones."""
    rows = draw(st.integers(1, 12))
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    count = sum(lengths)
    return {
        "rows": rows,
        "dim": draw(st.sampled_from(DIMS)),
        "lengths": lengths,
        "ids": draw(st.lists(st.integers(-2, rows - 1), min_size=count, max_size=count)),
        "weights": draw(
            st.none()
            | st.lists(
                st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0, 2.0, 3.5]),
                min_size=count,
                max_size=count,
            )
        ),
        "ragged": draw(st.booleans()),
        "id_type": draw(st.sampled_from([tf.int32, tf.int64])),
        "combiner": draw(st.sampled_from(["mean", "sum", "sqrtn"])),
        "max_norm": draw(st.none() | st.sampled_from([0.5, 1.5])),
        "dtype": draw(st.sampled_from([tf.float32, tf.float32, tf.float16, tf.bfloat16])),
    }


def ids_of(lookup):
    ids = tf.RaggedTensor.from_row_lengths(
        tf.constant(lookup["ids"], lookup["id_type"]), tf.constant(lookup["lengths"], tf.int64)
    )
    return ids if lookup["ragged"] else ids.to_sparse()


def weights_of(lookup, values):
    ids = ids_of(lookup)
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_values(values)
    return tf.SparseTensor(ids.indices, values, ids.dense_shape)


def run(lookup_group, tables, cases, weights, seeds):
    """Results, and the gradients of tables and weights, of a random weighing of all results."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        sp_weights = [
            None if case["weights"] is None else weights_of(case, weight)
            for case, weight in zip(cases, weights)
        ]
        outputs = lookup_group(tables, [ids_of(case) for case in cases], sp_weights)
        loss = tf.add_n(
            [
                tf.reduce_sum(tf.cast(output, tf.float32) * seed)
                for output, seed in zip(outputs, seeds)
            ]
        )
    return outputs, *tape.gradient(loss, [tables, weights])


def make_inputs(cases, shared, generator):
    """Tables (the first one of them serving all lookups that can share it), weights, and seeds of
    the output gradients that float16 holds exactly."""
    tables = []
    for case in cases:
        if shared and tables:
            first = cases[0]
            case.update({key: first[key] for key in ("rows", "dim", "dtype", "max_norm")})
            case["ids"] = [min(i, case["rows"] - 1) for i in case["ids"]]
            tables.append(tables[0])
            continue
        rows = generator.uniform(-1, 1, [case["rows"], case["dim"]])
        tables.append(tf.Variable(tf.cast(rows, case["dtype"])))
    weights = [tf.constant(case["weights"] or [1.0] * len(case["ids"])) for case in cases]
    seeds = [
        tf.constant(
            np.round(generator.uniform(-1, 1, [len(case["lengths"]), case["dim"]]) * 8) / 8,
            tf.float32,
        )
        for case in cases
    ]
    return tables, weights, seeds


@settings(max_examples=60)
@given(
    cases=st.lists(lookups(), min_size=1, max_size=4),
    shared=st.booleans(),
    traced=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_values_and_gradients_equal_tensorflow(cases, shared, traced, seed):
    # Given any mixture of tables, ids, weights and combiners
    tables, weights, seeds = make_inputs(cases, shared, np.random.default_rng(seed))
    combiners = [case["combiner"] for case in cases]
    max_norms = [case["max_norm"] for case in cases]

    # When they are looked up together, and one by one
    def grouped(tables, ids, sp_weights):
        return ge.group_embedding_lookup_sparse(
            tables, ids, combiners, sp_weights=sp_weights, max_norm=max_norms
        )

    def one_by_one(tables, ids, sp_weights):
        return [
            oracle.look_up(*lookup) for lookup in zip(tables, ids, sp_weights, combiners, max_norms)
        ]

    run_grouped = tf.function(run) if traced else run
    actual = run_grouped(grouped, tables, cases, weights, seeds)
    expected = run(one_by_one, tables, cases, weights, seeds)

    # Then values and gradients agree, and each table's gradient has unique rows in order
    for i, case in enumerate(cases):
        tolerance = TOLERANCE[case["dtype"]]
        oracle.assert_same(actual[0][i], expected[0][i], tolerance, f"values of {case}")
        oracle.assert_same(
            oracle.dense(actual[1][i]), oracle.dense(expected[1][i]), 4 * tolerance, f"table {case}"
        )
        if case["weights"] is not None:
            oracle.assert_same(
                oracle.dense(actual[2][i]),
                oracle.dense(expected[2][i]),
                4 * tolerance,
                f"weights of {case}",
            )
        oracle.assert_unique_and_sorted(actual[1][i], f"gradient of {case}")


@pytest.mark.parametrize("use_resource", [False, True])
def test_session_with_ref_and_resource_variables(use_resource):
    # Given a v1 graph with a variable of either kind, read twice
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        start = np.arange(12, dtype=np.float32).reshape(4, 3)
        table = tf.compat.v1.get_variable("t", initializer=start, use_resource=use_resource)
        ids = tf.sparse.from_dense([[1, 3, 0], [2, 0, 0]])
        # When it is looked up and trained
        a, b = ge.group_embedding_lookup_sparse([table, table], [ids, ids], ["mean", "sum"])
        expected = tf.nn.safe_embedding_lookup_sparse(table, ids, combiner="mean")
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)
        train = optimizer.minimize(tf.reduce_sum(a) + tf.reduce_sum(b))
        session.run(tf.compat.v1.global_variables_initializer())
        # Then values are TensorFlow's, and each row moves by its gradient, once
        np.testing.assert_allclose(*session.run([a, expected]), rtol=1e-6)
        session.run(train)
        moved = start - 0.5 * np.array([[0], [1.5], [2], [1.5]], np.float32)
        np.testing.assert_allclose(session.run(table), moved, rtol=1e-6)


def test_plain_tensors_as_tables():
    # Given a table that is the result of other ops
    base = tf.Variable(tf.random.stateless_uniform([6, 5], [1, 2]))
    ids = tf.ragged.constant([[0, 5], [], [3]], dtype=tf.int64)
    # When it is looked up
    with tf.GradientTape(persistent=True) as tape:
        actual = ge.group_embedding_lookup_sparse([base * 2.0], [ids], "sqrtn")[0]
        expected = oracle.look_up(base * 2.0, ids, None, "sqrtn")
    # Then values and the gradient through it are TensorFlow's
    oracle.assert_same(actual, expected, 1e-6, "values")
    oracle.assert_same(tape.gradient(actual, base), tape.gradient(expected, base), 1e-6, "gradient")


@pytest.mark.parametrize("in_graph", [False, True])
def test_arrays_of_numpy_as_tables(in_graph):
    # Given two tables that are arrays, of two dims
    tables = [np.arange(12, dtype=np.float32).reshape(4, 3), np.eye(4, dtype=np.float32)]
    # When they are looked up in eager code, or in a graph of TensorFlow 1
    with tf.Graph().as_default() if in_graph else contextlib.nullcontext():
        ids = tf.SparseTensor([[0, 0], [0, 1]], tf.constant([1, 3], tf.int64), [2, 2])
        found = ge.group_embedding_lookup_sparse(tables, [ids, ids], "sum")
        if in_graph:
            with tf.compat.v1.Session() as session:
                found = session.run(found)
    # Then the results are those of their rows
    for rows, output in zip(tables, found):
        np.testing.assert_array_equal(output, [rows[1] + rows[3], np.zeros(rows.shape[1])])


def test_samples_of_higher_rank_keep_their_axes():
    # Given ids of rank 4: their last axis is pooled
    dense = np.random.default_rng(3).integers(0, 9, [2, 3, 2, 4])
    ids = tf.sparse.from_dense(dense)
    table = tf.Variable(tf.random.stateless_uniform([9, 6], [3, 4]))
    # When they are looked up beside ids of rank 2
    outputs = ge.group_embedding_lookup_sparse(
        [table, table], [ids, tf.sparse.from_dense([[1]])], "mean"
    )
    # Then the result has the other axes
    expected = tf.nn.safe_embedding_lookup_sparse(table, ids, combiner="mean")
    assert outputs[0].shape == [2, 3, 2, 6]
    oracle.assert_same(outputs[0], expected, 1e-6, "rank 4")


def test_concat_is_the_results_side_by_side():
    # Given tables of different dims
    tables = [tf.Variable(tf.random.stateless_uniform([9, dim], [dim, 4])) for dim in (3, 16, 5)]
    ids = [
        tf.ragged.constant(rows, dtype=tf.int64) for rows in ([[1], [2, 3]], [[], [4]], [[8], [8]])
    ]
    # When the op writes one tensor
    with tf.GradientTape(persistent=True) as tape:
        one = ge.group_embedding_lookup_sparse(tables, ids, "mean", concat=True)
        many = tf.concat(ge.group_embedding_lookup_sparse(tables, ids, "mean"), axis=-1)
        losses = [tf.reduce_sum(one**2), tf.reduce_sum(many**2)]
    # Then it equals the concatenation, bit for bit, and so do gradients
    np.testing.assert_array_equal(one, many)
    for a, b in zip(tape.gradient(losses[0], tables), tape.gradient(losses[1], tables)):
        np.testing.assert_array_equal(a.values, b.values)


@pytest.mark.parametrize("id_type", [tf.uint32, tf.uint64, tf.int32, tf.int64])
def test_every_id_type(id_type):
    table = tf.Variable(tf.random.stateless_uniform([9, 4], [1, 4]))
    ids = tf.SparseTensor([[0, 0], [1, 0]], tf.cast([8, 2], id_type), [2, 1])
    np.testing.assert_array_equal(
        ge.group_embedding_lookup_sparse([table], [ids], "sum")[0], tf.gather(table, [8, 2])
    )


def test_dims_up_to_4096_and_two_thousand_tables():
    # Given more tables than any limit, one of them very wide
    dims = [4096] + [1 + i % 5 for i in range(1999)]
    tables = [tf.Variable(tf.fill([3, dim], float(i))) for i, dim in enumerate(dims)]
    ids = [tf.SparseTensor([[0, 0], [1, 1]], [2, 1], [2, 2])] * 2000
    # When they are looked up in one call
    with tf.GradientTape() as tape:
        outputs = ge.group_embedding_lookup_sparse(tables, ids, "sum")
        loss = tf.add_n([tf.reduce_sum(output) for output in outputs])
    # Then each result and gradient is its own table's
    for i in (0, 1, 999, 1999):
        np.testing.assert_array_equal(outputs[i], np.full([2, dims[i]], float(i)))
    gradients = tape.gradient(loss, tables)
    np.testing.assert_array_equal(gradients[1999].indices, [1, 2])


def test_one_op_whatever_the_number_of_tables():
    # Given a function of many lookups, forward and backward
    tables = [tf.Variable(tf.ones([3, 2 + i])) for i in range(30)]

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            outputs = ge.group_embedding_lookup_sparse(tables, [ids] * 30, "mean")
            loss = tf.add_n([tf.reduce_sum(output) for output in outputs])
        return tape.gradient(loss, tables)

    # When it is traced
    graph = step.get_concrete_function(tf.SparseTensorSpec([None, None], tf.int64)).graph
    # Then it has one op of each kind
    types = [op.type for op in graph.get_operations()]
    assert [
        types.count(t)
        for t in (
            "GroupEmbedding>GroupIds",
            "GroupEmbedding>GroupLookup",
            "GroupEmbedding>GroupLookupGrad",
        )
    ] == [1, 1, 1]


def test_results_have_static_shapes():
    @tf.function
    def look_up(ids):
        out = ge.group_embedding_lookup_sparse([tf.ones([4, 3])], [ids], "mean")[0]
        assert out.shape.as_list() == [7, 3]
        return out

    look_up(tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [7, 2]))


def test_zero_samples_and_zero_ids():
    table = tf.Variable(tf.ones([4, 3]))
    none = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [0, 0])
    empty = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [2, 0])
    with tf.GradientTape() as tape:
        outputs = ge.group_embedding_lookup_sparse([table, table], [none, empty], "mean")
        loss = tf.reduce_sum(outputs[0]) + tf.reduce_sum(outputs[1])
    assert outputs[0].shape == [0, 3]
    np.testing.assert_array_equal(outputs[1], np.zeros([2, 3]))
    assert tape.gradient(loss, table).indices.shape == [0]


def test_dense_ids():
    # Given dense ids of several shapes
    tables = [tf.Variable(tf.random.stateless_uniform([9, dim], [dim, 7])) for dim in (4, 6)]
    ids = [tf.constant([[1, 2, 3], [8, 0, 1]]), tf.constant(5)]
    # When they are looked up together
    with tf.GradientTape(persistent=True) as tape:
        outputs = ge.group_embedding_lookup(tables, ids)
        expected = [tf.nn.embedding_lookup(*pair) for pair in zip(tables, ids)]
    # Then each equals tf.nn.embedding_lookup, gradients too
    for i in range(2):
        oracle.assert_same(outputs[i], expected[i], 0, f"lookup {i}")
        oracle.assert_same(
            oracle.dense(tape.gradient(outputs[i], tables[i])),
            oracle.dense(tape.gradient(expected[i], tables[i])),
            1e-6,
            f"gradient {i}",
        )


def test_gradient_is_bitwise_the_same_every_time():
    # Given many duplicates, whose sum depends on the order of adding
    generator = np.random.default_rng(11)
    table = tf.Variable(generator.normal(size=[300, 32]).astype(np.float32))
    ids = tf.RaggedTensor.from_row_lengths(
        tf.constant(generator.zipf(1.3, 200_000) % 300), tf.fill([20_000], 10)
    )
    seed = tf.constant(generator.normal(size=[20_000, 32]).astype(np.float32))

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ge.group_embedding_lookup_sparse([table], [ids], "mean")[0] * seed)
        return tape.gradient(loss, table)

    # When the gradient is computed again and again
    first = gradient()
    # Then it has the same bits, and is right
    for _ in range(3):
        np.testing.assert_array_equal(first.values, gradient().values)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(oracle.look_up(table, ids, None, "mean") * seed)
    expected = oracle.dense(tape.gradient(loss, table))
    oracle.assert_same(oracle.dense(first), expected, 1e-4, "gradient")


def test_combiners_none_warns_and_means_mean():
    ids, table = tf.sparse.from_dense([[1, 2]]), tf.constant([[0.0], [2.0], [6.0]])
    with pytest.warns(UserWarning, match="mean"):
        out = ge.group_embedding_lookup_sparse([table], [ids], None)
    np.testing.assert_array_equal(out[0], [[4.0]])
