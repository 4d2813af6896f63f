"""`sparse_read_and_evict` and `lookup_sparse(use_low_frequency_filter=True)`."""

import numpy as np
import pytest
import tensorflow as tf

from group_embedding import exchange, sok

v1 = tf.compat.v1


def table_of(capacity, **arguments):
    with pytest.warns(UserWarning, match="host memory") if _no_gpu() else _nothing():
        return sok.DynamicVariable(
            2, "11", var_type="hybrid", init_capacity=1, max_capacity=capacity, **arguments
        )


def _no_gpu():
    return not tf.config.list_physical_devices("GPU")


class _nothing:
    def __enter__(self):
        return None

    def __exit__(self, *_):
        return None


def read_and_train(table, optimizer, ids):
    with tf.GradientTape() as tape:
        rows, keys, values = sok.sparse_read_and_evict(table, ids)
        loss = tf.reduce_sum(rows)
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    return rows.numpy(), keys.numpy().tolist(), values.numpy()


@pytest.mark.parametrize("key_type", [tf.int64, tf.int32, tf.uint64, tf.uint32])
def test_the_oldest_keys_go_and_none_of_the_batch(key_type):
    # Given a table of four keys at most, and three batches of two
    table, optimizer = table_of(4, key_type=key_type), sok.SGD(1.0)
    batches = [tf.constant(ids, key_type) for ids in ([1, 2], [3, 4], [1, 5])]
    of_steps = [read_and_train(table, optimizer, ids) for ids in batches]

    # When the third reads one that it has and one that is new
    (_, none, _), (_, no_more, _), (rows, keys, values) = of_steps

    # Then the oldest of the others has gone, with what it had learnt
    assert none == no_more == []
    np.testing.assert_array_equal(rows, [[10, 10], [11, 11]])
    assert keys == [2]
    np.testing.assert_array_equal(values, [[10, 10]])
    assert sok.export(table)[0].numpy().tolist() == [1, 3, 4, 5]


def test_a_batch_larger_than_the_table_stays_whole():
    table, optimizer = table_of(2), sok.SGD(1.0)
    read_and_train(table, optimizer, [[9, 8]])

    _, keys, _ = read_and_train(table, optimizer, [[1, 2], [3, 1]])

    assert sorted(keys) == [8, 9]
    assert sok.export(table)[0].numpy().tolist() == [1, 2, 3]


def test_in_a_graph_of_tensorflow_1():
    with tf.Graph().as_default(), v1.Session() as session:
        table = table_of(4)
        ids = v1.placeholder(tf.int64, [None])
        found = sok.sparse_read_and_evict(table, ids)
        gradients = tf.gradients(tf.reduce_sum(found[0]), [table])
        trained = sok.SGD(1.0).apply_gradients(zip(gradients, [table]))
        session.run(v1.global_variables_initializer())

        of_steps = [
            session.run([*found, trained], {ids: [first, first + 1]}) for first in (0, 2, 4, 6)
        ]

        gone = [keys.tolist() for _, keys, _, _ in of_steps]
        assert gone == [[], [], [0, 1], [2, 3]]
        for _, _, values, _ in of_steps:
            assert (values == 10).all()


def evict_on_rank():
    sok.init(use_legacy_optimizer=False)
    rank = exchange.current().rank
    table, optimizer = sok.DynamicVariable(2, "11", max_capacity=4), sok.SGD(1.0)
    kept = []
    for first in (0, 8, 16, 24):
        _, keys, values = read_and_train(table, optimizer, np.arange(first, first + 4) + 4 * rank)
        kept.append((keys, values.tolist(), sok.export(table)[0].numpy().tolist()))
    return kept


def test_each_rank_keeps_to_the_capacity(two_ranks):
    # Given a table over two ranks, each of which has four keys at most
    of_ranks = two_ranks.run(evict_on_rank)

    # When batches of eight new keys come, then none is lost: it is held, or it has gone once
    for step, parts in enumerate(zip(*of_ranks)):
        batch = set(range(8 * step, 8 * step + 8))
        held = [set(keys) for _, _, keys in parts]
        for rank, keys in enumerate(held):
            assert len(keys) <= max(4, len(keys & batch))
            gone = [key for past in of_ranks[rank][: step + 1] for key in past[0]]
            assert len(gone) == len(set(gone)) and not keys & set(gone)
        gone = [key for rank in of_ranks for past in rank[: step + 1] for key in past[0]]
        assert set.union(*held, set(gone)) == set(range(8 * step + 8))
    for of_rank in of_ranks:
        assert all(value == 10 for _, values, _ in of_rank for row in values for value in row)


@pytest.mark.parametrize("make", [lambda: sok.Variable([[1.0]]), lambda: _of_hbm()])
def test_other_tables_are_refused(make):
    with pytest.raises(TypeError, match="expected a DynamicVariable of var_type 'hybrid'"):
        sok.sparse_read_and_evict(make(), [0])


def _of_hbm():
    table = sok.DynamicVariable(1)
    table.backend_type = "hbm"
    return table


IDS = [list(range(50)), [], [1, 2, 100, 101], [100] * 8]


def filter_on_rank(combiner, weighted, form):
    """Results when keys below 50 have rows, and other keys get one with probability 1/10."""
    sok.init(use_legacy_optimizer=False)
    tf.random.set_seed(7)
    table = sok.DynamicVariable(1, "1", filter_ratio=0.1)
    sok.assign(table, np.arange(50), np.full([50, 1], 3.0))
    ids = tf.ragged.constant([*IDS, list(range(1000, 2000))], tf.int64)
    weights = ids.with_values(tf.cast(ids.values % 3 - 1, tf.float32)) if weighted else None
    if form == "sparse":
        ids = ids.to_sparse()
        weights = weights.to_sparse() if weighted else None
    optimizer = sok.SGD(1.0)
    with tf.GradientTape() as tape:
        result = sok.lookup_sparse(table, ids, weights, combiner, use_low_frequency_filter=True)
        loss = tf.reduce_sum(result)
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    exchange.current().barrier("trained")
    return result[:, 0].numpy(), sok.export(table)[0].numpy().tolist()


def expected_of(keys, combiner, weighted):
    """Expected results for the keys that have a row in the end."""
    results = []
    for ids in [*IDS, list(range(1000, 2000))]:
        weights = np.array([i % 3 - 1.0 if weighted else 1.0 for i in ids])
        rows = np.array([3.0 if i < 50 else 1.0 if i in keys else 0.0 for i in ids])
        divisor = {"sum": 1.0, "mean": weights.sum(), "sqrtn": np.sqrt((weights**2).sum())}
        by = divisor[combiner] if len(ids) else 0
        results.append((weights * rows).sum() / by if by else 0.0)
    return results


@pytest.mark.parametrize("form", ["ragged", "sparse"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_new_keys_are_drawn_and_others_read_zeros(combiner, weighted, form):
    # Given keys that have rows, and many that have none, when they are looked up and trained
    result, keys = filter_on_rank(combiner, weighted, form)

    # Then some of the new ones have rows, and the others read zeros and count in the divisor
    assert keys[:50] == list(range(50)) and 30 < len(keys) - 50 < 200
    np.testing.assert_allclose(result, expected_of(set(keys), combiner, weighted), rtol=1e-5)


def test_ranks_ask_each_other_which_keys_have_rows(two_ranks):
    # Given the same lookup on two ranks, each of which draws by itself
    of_ranks = two_ranks.run(filter_on_rank, "sum", False, "ragged")

    # When keys are admitted, then those that had a row on either rank were read by both
    for result, _ in of_ranks:
        assert result[0] == 150 and result[1] == 0 and 6 <= result[2] <= 8
    assert sorted(key for _, keys in of_ranks for key in keys if key < 50) == list(range(50))


def test_a_ratio_of_one_filters_nothing():
    table = sok.DynamicVariable(1, "2")

    result = sok.lookup_sparse(
        table, tf.ragged.constant([[1, 2]], tf.int64), None, "sum", use_low_frequency_filter=True
    )

    np.testing.assert_array_equal(result, [[4]])
