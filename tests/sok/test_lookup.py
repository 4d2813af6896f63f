"""SOK's lookups: what they take, and gradients that are sums over the ranks."""

import numpy as np
import pytest
import tensorflow as tf

from group_embedding import exchange, sok

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)
KEY_TYPES = [tf.int64, tf.uint32, tf.int32, tf.uint64]


def ragged(ids, dtype=tf.int64):
    return tf.ragged.constant(ids, dtype=dtype)


def test_samples_without_ids_are_zeros():
    tables = [sok.Variable(ROWS), sok.DynamicVariable(dimension=2, initializer="13")]

    results = sok.lookup_sparse(tables, [ragged([[], []])] * 2, combiners=["mean", "sum"])

    for result in results:
        np.testing.assert_array_equal(result, np.zeros([2, 2]))


def test_one_table_gives_one_tensor_and_no_combiner_means_mean():
    result = sok.lookup_sparse(sok.Variable(ROWS), ragged([[0, 2], [5]]))

    np.testing.assert_array_equal(result, [[2, 3], [10, 11]])


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_ids_of_every_type(key_type, kind):
    table = sok.Variable(ROWS) if kind == "static" else sok.DynamicVariable(2, key_type=key_type)
    if kind == "dynamic":
        sok.assign(table, np.arange(6), ROWS)

    result = sok.lookup_sparse(table, ragged([[1, 3], [5]], key_type), combiners="sum")

    np.testing.assert_array_equal(result, [ROWS[1] + ROWS[3], ROWS[5]])


@pytest.mark.parametrize(
    "key_type, id_type", [(tf.int64, tf.int32), (tf.int64, tf.uint32), (tf.uint64, tf.uint32)]
)
def test_a_table_takes_ids_of_narrower_types(key_type, id_type):
    table = sok.DynamicVariable(dimension=2, key_type=key_type)
    greatest = id_type.max
    sok.assign(table, tf.constant([greatest], key_type), [[1.0, 2.0]])

    sparse = sok.lookup_sparse(table, ragged([[greatest]], id_type))
    dense = tf.nn.embedding_lookup(table, tf.constant([greatest], id_type))

    np.testing.assert_array_equal(sparse, [[1, 2]])
    np.testing.assert_array_equal(dense, [[1, 2]])


def test_ids_of_types_that_do_not_fit_are_refused():
    table = sok.DynamicVariable(dimension=2, key_type=tf.uint32, name="narrow")

    with pytest.raises(TypeError, match="expected ids of uint32, .* table 'narrow', got int64"):
        sok.lookup_sparse(table, ragged([[1]]))


def gradients_on_rank():
    """Of the table's rows on this rank, and of the weights."""
    sok.init()
    rank = exchange.current().rank
    table = sok.Variable(ROWS)
    ids = ragged([[0, 1], [3, 3]])
    weights = tf.RaggedTensor.from_row_splits(tf.constant([1.0, 2.0, 3.0, 4.0]), [0, 2, 4])
    with tf.GradientTape() as tape:
        tape.watch(weights.values)
        pooled = sok.lookup_sparse(table, ids, weights, "sum")
        dense = sok.all2all_dense_embedding(table, [[0], [4]])
        loss = (rank + 1) * (tf.reduce_sum(pooled) + tf.reduce_sum(dense))
    of_table, of_weights = tape.gradient(loss, [table, weights.values])
    return tf.convert_to_tensor(of_table).numpy(), of_weights.numpy()


def test_gradients_of_tables_are_sums_over_the_ranks_and_of_weights_their_own(two_ranks):
    # Of one rank: row 0 weighs 1 and is read once more, row 1 weighs 2, row 3 7; row 4 is read.
    of_one = np.outer([2, 2, 0, 7, 1, 0], [1, 1])
    of_weights = np.float32([ROWS[i].sum() for i in (0, 1, 3, 3)])

    found = two_ranks.run(gradients_on_rank)

    for rank, (rows, weights) in enumerate(found):
        np.testing.assert_allclose(rows, 3 * of_one[rank::2], rtol=1e-6)
        np.testing.assert_allclose(weights, (rank + 1) * of_weights, rtol=1e-6)
