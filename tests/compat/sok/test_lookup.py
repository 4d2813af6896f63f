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

    with pytest.raises(TypeError, match="expected ids of uint32, .* table 'narrow', .* got int64"):
        sok.lookup_sparse(table, ragged([[1]]))


def gradients_on_rank():
    """Gradients of the table's rows on this rank, and of the weights."""
    sok.init(use_legacy_optimizer=False)
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
    # Gradients of one rank: rows 0, 1 and 3 are read with weights 1, 2 and 7, rows 0 and 4 with 1.
    of_one = np.outer([2, 2, 0, 7, 1, 0], [1, 1])
    of_weights = np.float32([ROWS[i].sum() for i in (0, 1, 3, 3)])

    found = two_ranks.run(gradients_on_rank)

    for rank, (rows, weights) in enumerate(found):
        np.testing.assert_allclose(rows, 3 * of_one[rank::2], rtol=1e-6)
        np.testing.assert_allclose(weights, (rank + 1) * of_weights, rtol=1e-6)


# Rows that are powers of two: a sum of some names them.
NAMED = np.float32([[1, 10], [2, 20], [4, 40], [8, 80]])
SIGNED_IDS = [[0, 1], [2], [1, 2], [], [3, 3, 0], [0, 2]]
SIGNED_WEIGHTS = [[2.0, -1.0], [-3.0], [1.0, 0.0], [], [-1.0, 0.5, 2.0], [1.0, -1.0]]


def signed_on_rank(kind, combiner, first=0, step=1):
    """Results for the samples `first`, `first + step`, ..., the gradients of all rows and of the
    weights, and the rows after a step of SGD."""
    ids = ragged(SIGNED_IDS[first::step])
    weights = tf.ragged.constant(SIGNED_WEIGHTS[first::step], dtype=tf.float32)
    table, optimizer = tf.Variable(NAMED), tf.keras.optimizers.SGD(1.0)
    if kind == "static":
        table = sok.Variable(NAMED)
    elif kind == "dynamic":
        table = sok.DynamicVariable(dimension=2)
        sok.assign(table, np.arange(4), NAMED)
    if kind != "tensorflow":
        optimizer = sok.OptimizerWrapper(optimizer)
    with tf.GradientTape() as tape:
        tape.watch(weights.values)
        if kind == "tensorflow":
            sparse = [ids.to_sparse(), weights.to_sparse()]
            result = tf.nn.embedding_lookup_sparse(table, *sparse, combiner=combiner)
            # Stock has no line for an empty last sample.
            result = tf.pad(result, [[0, ids.nrows() - tf.shape(result, tf.int64)[0]], [0, 0]])
        else:
            result = sok.lookup_sparse(table, ids, weights, combiner)
        loss = tf.reduce_sum(result * tf.constant([1.0, 0.5]))
    of_table, of_weights = tape.gradient(loss, [table, weights.values])
    optimizer.apply_gradients([(of_table, table)])
    rows = sok.all2all_dense_embedding(table, tf.range(4, dtype=tf.int64))
    return result.numpy(), of_weights.numpy(), rows.numpy()


@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "sum"])
@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_weights_of_any_sign_count(kind, combiner):
    # Given samples with negative weights, zeros, a weight for each sign, and weights that cancel
    expected = signed_on_rank("tensorflow", combiner)

    # When they are looked up and trained on
    found = signed_on_rank(kind, combiner)

    # Then results, gradients and rows are those of tf.nn.embedding_lookup_sparse
    for part, of_tensorflow in zip(found, expected):
        np.testing.assert_allclose(part, of_tensorflow, rtol=1e-6, atol=1e-6)


def test_the_mean_of_weights_of_any_sign():
    table = sok.Variable([[1.0], [2.0], [4.0]])
    ids = ragged([[0, 1], [2], [1, 2]])
    weights = tf.ragged.constant([[2.0, -1.0], [-3.0], [1.0, 0.0]])

    result = sok.lookup_sparse([table], [ids], [weights], ["mean"])[0]

    np.testing.assert_array_equal(result, [[0], [4], [2]])


def signed_on_two_ranks(kind, combiner):
    sok.init(use_legacy_optimizer=False)
    return signed_on_rank(kind, combiner, exchange.current().rank, 2)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_weights_of_any_sign_count_over_ranks(two_ranks, kind, combiner):
    # Given the same samples, every other one on each rank
    result, of_weights, rows = signed_on_rank("tensorflow", combiner)
    lengths = [len(ids) for ids in SIGNED_IDS]
    of_sample = np.split(of_weights, np.cumsum(lengths)[:-1])

    # When ranks look them up and train on them together
    found = two_ranks.run(signed_on_two_ranks, kind, combiner)

    # Then each has its samples' results, and the table is as if one had trained on all
    for rank, (of_rank, weights_of_rank, rows_of_rank) in enumerate(found):
        np.testing.assert_allclose(of_rank, result[rank::2], rtol=1e-6, atol=1e-6)
        expected = np.concatenate(of_sample[rank::2])
        np.testing.assert_allclose(weights_of_rank, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(rows_of_rank, rows, rtol=1e-6, atol=1e-6)
