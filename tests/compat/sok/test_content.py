"""`assign`, `export` and `incremental_model_dump`."""

import datetime
import time

import numpy as np
import pytest
import tensorflow as tf

from group_embedding import exchange, sok

KEYS = np.array([3, -7, 2**40, 11, 0])


def values_of(keys):
    return np.stack([keys % 100, keys % 7], axis=1).astype(np.float32)


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def assign_on_rank():
    """Each rank gives keys that it need not own; returns what it has then."""
    sok.init(use_legacy_optimizer=False)
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    mine = KEYS[rank::num_ranks]
    kept = {}
    for mode in ("distributed", "localized:0"):
        table = sok.DynamicVariable(dimension=2, mode=mode)
        sok.assign(table, mine, values_of(mine))
        kept[mode] = [part.numpy() for part in sok.export(table)]

        rows = sok.Variable(np.zeros([7, 2], np.float32), mode=mode)
        numbers = np.arange(7)[rank::num_ranks] - (num_ranks > 1) * rank  # row 0 comes twice
        sok.assign(rows, numbers, values_of(numbers + 1))
        kept["rows, " + mode] = [part.numpy() for part in sok.export(rows)]
    return kept


def test_keys_go_to_the_ranks_that_own_them(two_ranks):
    found = two_ranks.run(assign_on_rank)

    for mode in ("distributed", "localized:0"):
        keys = np.concatenate([rank[mode][0] for rank in found])
        assert sorted(keys) == sorted(KEYS)
        np.testing.assert_array_equal(
            np.concatenate([rank[mode][1] for rank in found]), values_of(keys)
        )
    assert len(found[1]["localized:0"][0]) == 0


def test_rows_go_to_the_ranks_that_own_them(two_ranks):
    found = two_ranks.run(assign_on_rank)

    for mode in ("distributed", "localized:0"):
        rows, values = (np.concatenate(p) for p in zip(*[rank["rows, " + mode] for rank in found]))
        # Rank 0 gives 0, 2, 4, 6 and rank 1 gives 0, 2, 4.
        expected = np.where(rows[:, None] % 2, 0, values_of(rows + 1))
        assert sorted(rows) == list(range(7))
        np.testing.assert_array_equal(values, expected)


def test_one_process_keeps_all():
    kept = assign_on_rank()

    keys, values = kept["distributed"]
    assert keys.tolist() == sorted(KEYS)
    np.testing.assert_array_equal(values, values_of(keys))
    np.testing.assert_array_equal(kept["rows, distributed"][1], values_of(np.arange(1, 8)))


@pytest.mark.parametrize(
    "indices, got",
    [
        ([5, 2**32 + 5], "got 4294967301"),
        (np.array([2**32 + 5, 5]), "got 4294967301"),
        (np.array([5, 1.9]), "got 1.9"),
        ([-0.5, 5], "got -0.5"),
        (tf.constant([1.0, 5.0]), "got a tensor of float32"),
    ],
    ids=str,
)
def test_indices_that_are_no_keys_or_rows_are_refused(indices, got):
    # Given a table of narrow keys, and one of rows
    keyed = sok.DynamicVariable(1, "0", name="items", key_type=tf.int32)
    sok.assign(keyed, [1, 5], [[1.0], [5.0]])
    rows = sok.Variable(np.zeros([9, 1], np.float32), name="small")

    # When indices that are none are assigned
    with pytest.raises(ValueError, match=f"table 'items': expected keys of int32.*{got}"):
        sok.assign(keyed, indices, [[8.0], [9.0]])
    of_rows = "expected rows from 0" if "429" in got else f"expected keys of int64.*{got}"
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=of_rows):
        sok.assign(rows, indices, [[8.0], [9.0]])

    # Then nothing has changed
    assert [part.numpy().ravel().tolist() for part in sok.export(keyed)] == [[1, 5], [1.0, 5.0]]
    np.testing.assert_array_equal(rows, np.zeros([9, 1]))


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_outside_its_table_is_refused_and_nothing_changes(row):
    table = sok.Variable(np.zeros([3, 2], np.float32), name="small")

    with pytest.raises(tf.errors.InvalidArgumentError, match="table 'small': expected rows from 0"):
        sok.assign(table, [0, row], np.ones([2, 2]))

    np.testing.assert_array_equal(table, np.zeros([3, 2]))


@pytest.mark.parametrize("indices, values", [([1], [[1.0]]), ([1, 2], [[1.0, 2.0]])])
@pytest.mark.parametrize(
    "make", [lambda: sok.Variable(np.zeros([3, 2])), lambda: sok.DynamicVariable(2)]
)
def test_values_of_another_shape_are_refused(make, indices, values):
    with pytest.raises(ValueError, match=r"expected indices \[n\] and values \[n, 2\], got"):
        sok.assign(make(), indices, values)


def changes_on_rank():
    sok.init(use_legacy_optimizer=False)
    rank = exchange.current().rank
    tables = [sok.DynamicVariable(dimension=1, initializer="1", name=n) for n in ("a", "b")]
    optimizer = sok.SGD(1.0)

    def train(keys):
        ids = [tf.RaggedTensor.from_row_lengths(tf.constant(keys, tf.int64), [len(keys)])] * 2
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(o) for o in sok.lookup_sparse(tables, ids, None, "sum")])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    train([1, 2, 3])
    exchange.current().barrier("trained")
    time.sleep(0.01)
    since = now()
    time.sleep(0.01)
    exchange.current().barrier("asked")
    train([3, 10 + rank])
    sok.assign(tables[1], [7], [[5.0]])
    return sok.incremental_model_dump(tables, since), sok.incremental_model_dump(
        tables, [since, now() + datetime.timedelta(hours=1)]
    )


def as_dict(keys, values):
    return dict(zip(keys.tolist(), values[:, 0].tolist()))


def test_changes_are_those_of_all_ranks_since_the_moment(two_ranks):
    # Both ranks read 3 in both steps; 10 and 11 are of one rank each.
    first = {3: 1 - 4.0, 10: 0.0, 11: 0.0}

    found = two_ranks.run(changes_on_rank)

    for (keys, values), (later_keys, _) in found:
        assert as_dict(keys[0], values[0]) == first
        assert as_dict(keys[1], values[1]) == {**first, 7: 5.0}
        assert sorted(later_keys[0]) == [3, 10, 11] and len(later_keys[1]) == 0


def test_a_moment_without_a_time_zone_is_utc():
    table = sok.DynamicVariable(dimension=1)
    sok.assign(table, [7], [[1.0]])
    minute = datetime.timedelta(minutes=1)

    before, _ = sok.incremental_model_dump(table, now().replace(tzinfo=None) - minute)
    after, _ = sok.incremental_model_dump(table, now().replace(tzinfo=None) + minute)

    assert before[0].tolist() == [7] and after[0].tolist() == []


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (lambda: (sok.Variable([[1.0]]), now()), TypeError, "expected DynamicVariables"),
        (lambda: (sok.DynamicVariable(1), 12.5), TypeError, "datetime.datetime, got 12.5"),
        (lambda: (sok.DynamicVariable(1), [now()] * 3), ValueError, "one time_threshold or 1"),
    ],
)
def test_what_has_no_changes_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        sok.incremental_model_dump(*arguments())
