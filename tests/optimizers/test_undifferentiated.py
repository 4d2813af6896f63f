"""A lookup that the loss does not depend on moves nothing: no row, and no moment of a row."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

LOOKED_UP = tf.ragged.constant([[0], [1]], dtype=tf.int64)
UNUSED = tf.ragged.constant([[2], [1]], dtype=tf.int64)


def train(optimizer, traced, hidden=False):
    """Two steps with both lookups, then one in which the loss has the first alone."""
    table, other = tf.Variable(tf.ones([4, 3])), tf.Variable(tf.ones([4, 2]))

    def step(ids, unused, use_both):
        with tf.GradientTape() as tape:
            a, b, c = ge.group_embedding_lookup_sparse(
                [table, table, other], [ids, unused, unused], "sum"
            )
            loss = tf.reduce_sum(a**2)
            if use_both:
                loss += tf.reduce_sum(b**2) + tf.reduce_sum(c**2)
        pairs = [p for p in zip(tape.gradient(loss, [table, other]), [table, other]) if p[0]]
        if hidden:
            pairs = [(tf.IndexedSlices(tf.identity(g.values), g.indices), v) for g, v in pairs]
        optimizer.apply_gradients(pairs)

    optimizer.build([table, other])
    step = tf.function(step) if traced else step
    for use_both in (True, True, False):
        before = [table.numpy(), other.numpy()]
        step(LOOKED_UP, UNUSED, use_both)
    return before, [table.numpy(), other.numpy()]


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_undifferentiated_lookup_moves_nothing(traced, hidden):
    # Given momentum, which goes on moving rows whose gradient is zero
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1, momentum=0.9))
    # When a step's loss depends on one of three lookups
    before, after = train(optimizer, traced, hidden)
    # Then its rows move, and row 2, which another looked up, does not, nor does the other table
    assert (after[0][:2] != before[0][:2]).all()
    np.testing.assert_array_equal(after[0][2:], before[0][2:])
    np.testing.assert_array_equal(after[1], before[1])


def test_undifferentiated_lookup_of_unknown_length():
    # Given a function of ragged tensors of any length, unwrapped
    table = tf.Variable(tf.ones([4, 3]))

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64, 1)] * 2)
    def gradient(ids, unused):
        with tf.GradientTape() as tape:
            a, _ = ge.group_embedding_lookup_sparse([table, table], [ids, unused], "sum")
            loss = tf.reduce_sum(a**2)
        return tape.gradient(loss, table)

    # When the gradient is taken
    slices = gradient(LOOKED_UP, UNUSED)
    # Then it has the rows of the lookup that counts
    np.testing.assert_array_equal(slices.indices, [0, 1])


def test_v1_graph():
    # Given a graph of TensorFlow 1 with momentum on a row that only another lookup has
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.compat.v1.get_variable("t", initializer=np.ones([4, 3], np.float32))
        ids = [tf.SparseTensor([[0, 0], [1, 0]], [i, 1], [2, 1]) for i in (0, 2)]
        a, b = ge.group_embedding_lookup_sparse([table, table], ids, "sum")
        optimizer = ge.optimizers.wrap(tf.compat.v1.train.MomentumOptimizer(0.1, 0.9))
        both = optimizer.minimize(tf.reduce_sum(a**2) + tf.reduce_sum(b**2))
        first = optimizer.minimize(tf.reduce_sum(a**2))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(both)
        before = session.run(table)
        # When the loss is of the first alone
        session.run(first)
        after = session.run(table)
    # Then the row of the other stays
    assert (after[:2] != before[:2]).all()
    np.testing.assert_array_equal(after[2:], before[2:])


def test_weights_of_an_undifferentiated_lookup_have_no_gradient():
    # Given weights of two lookups
    table = tf.Variable(tf.ones([4, 3]))
    weights = [tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])]
    # When one of them counts
    with tf.GradientTape() as tape:
        a, _ = ge.group_embedding_lookup_sparse(
            [table, table],
            [LOOKED_UP, UNUSED],
            "sum",
            sp_weights=[ids.with_values(w) for ids, w in zip((LOOKED_UP, UNUSED), weights)],
        )
        loss = tf.reduce_sum(a)
    gradients = tape.gradient(loss, weights)
    # Then it alone has a gradient
    np.testing.assert_array_equal(gradients[0], [3, 3])
    np.testing.assert_array_equal(gradients[1], [0, 0])
