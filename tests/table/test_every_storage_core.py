"""The contract of a keyed table in every storage."""

import threading

import numpy as np
import pytest
from table import storages
from table.steps import (
    BLOOM,
    EXTREMES,
    MAX,
    MIN,
    batches_of,
    counted_of,
    crowd_out,
    has_row,
    located,
    read,
    start_of,
    train,
    write,
)


def test_a_key_keeps_the_row_that_its_first_training_made(make_table):
    table = make_table()
    with located(table, EXTREMES, train=True, step=3) as first:
        with located(table, EXTREMES[::-1]) as again:
            np.testing.assert_array_equal(again[::-1], first)
        assert len(set(first.tolist())) == len(EXTREMES)
        np.testing.assert_array_equal(table.rows[first], start_of(EXTREMES))
        np.testing.assert_array_equal(table.info(first)["keys"], EXTREMES)

    crowd_out(table)

    np.testing.assert_array_equal(read(table, EXTREMES[::-1]), start_of(EXTREMES[::-1]))
    assert (table.describe(EXTREMES)["versions"] == 3).all()


def test_reading_gives_no_row(make_table):
    table = make_table()

    with located(table, EXTREMES) as rows:
        assert (rows < table.first_row).all()
        np.testing.assert_array_equal(table.rows[rows], start_of(EXTREMES))

    assert table.num_keys == 0
    np.testing.assert_array_equal(table.find(EXTREMES), -1)
    np.testing.assert_array_equal(table.describe(EXTREMES)["tiers"], -1)


def test_repeated_keys_of_a_batch_share_a_row_and_are_counted_each(make_table):
    table = make_table()

    with located(table, [5, 7, 5, 5], train=True, step=9) as rows:
        assert rows[0] == rows[2] == rows[3] != rows[1]
        infos = table.info(rows[:2])

    assert infos["keys"].tolist() == [5, 7]
    for _ in range(2):
        for found in (infos, table.describe([5, 7])):
            assert found["counts"].tolist() == [3, 1]
            assert found["versions"].tolist() == [9, 9]
        crowd_out(table)


def test_what_was_written_is_read(make_table):
    table = make_table(slots=["accumulator"])
    keys = np.arange(100)
    train(table, keys)
    write(table, keys, keys)
    write(table, keys, -keys, slot="accumulator")

    values, slots = read(table, keys[::-1]), read(table, keys[::-1], slot="accumulator")

    np.testing.assert_array_equal(values, np.repeat(keys[::-1, None], 4, axis=1))
    np.testing.assert_array_equal(slots, -values)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_table_grows_by_doublings_and_loses_nothing(storage, threads):
    print("seed 1")
    rng = np.random.default_rng(1)
    table = storage.make_table(
        2, distribution="uniform", b=1.0, num_threads=threads, rows_in_memory=60_000
    )
    keys = rng.integers(MIN, MAX, 200_000, np.int64)

    train(table, keys, at_once=30_000)

    assert table.num_keys == len(set(keys.tolist()))
    least = 0.1 if storage.has_disk else 0.3  # keys that went to disk leave gaps
    assert least < table.load_factor < 0.75
    for part in batches_of(keys, 30_000):
        with located(table, part) as rows:
            np.testing.assert_array_equal(table.info(rows)["keys"], part)


@pytest.mark.parametrize(
    "distribution, a, b, mean, deviation",
    [
        ("constant", 0.25, 0.0, 0.25, 0.0),
        ("uniform", -1.0, 3.0, 1.0, 4 / 12**0.5),
        ("normal", 1.0, 2.0, 1.0, 2.0),
        ("truncated_normal", 1.0, 2.0, 1.0, 2.0 * 0.87962566),
    ],
)
def test_first_values_depend_on_the_key_alone(make_table, distribution, a, b, mean, deviation):
    keys = np.arange(50_000)
    shuffled = np.random.default_rng(2).permutation(keys)
    options = {"distribution": distribution, "a": a, "b": b, "seed": 7, "rows_in_memory": 20_000}
    tables = [make_table(num_threads=n, **options) for n in (1, 4)]
    for table, order in zip(tables, (keys, shuffled)):
        train(table, order, at_once=10_000)

    values = [read(table, keys, at_once=10_000) for table in tables]

    np.testing.assert_array_equal(values[0], values[1])
    assert abs(values[0].mean() - mean) < 0.02
    assert abs(values[0].std() - deviation) < 0.02
    if distribution == "truncated_normal":
        assert np.abs(values[0] - a).max() <= 2 * b + 1e-6


@pytest.mark.parametrize("admission", ["counter", "bloom"])
def test_a_filter_admits_keys_once_they_were_seen_often_enough(make_table, admission):
    table = make_table(
        admission=admission, min_count=3, num_counters=4096, num_hashes=4, counter_bytes=2,
        no_row_value=-5.0,
    )  # fmt: skip

    train(table, [8, 9, 8])
    assert not has_row(table, [8, 9]).any()
    np.testing.assert_array_equal(read(table, [8]), np.full([1, 4], -5.0))
    crowd_out(table)
    train(table, [8, 9, 8])

    assert has_row(table, [8, 9]).tolist() == [True, False]
    np.testing.assert_array_equal(read(table, [8]), start_of([8]))
    crowd_out(table)
    assert table.describe([8])["counts"].tolist() == [4]
    train(table, [8, 9])
    assert table.describe([8, 9])["counts"].tolist() == [5, 3]


def test_what_was_counted_of_a_key_is_forgotten_once_it_has_a_row(make_table):
    table = make_table(admission="counter", min_count=3)
    keys = np.arange(40)
    train(table, keys)

    table.insert({"keys": keys, "values": np.ones([40, 4], np.float32)})

    assert counted_of(table.snapshot()) == {}
    assert table.evict_small(10.0) == 40
    for _ in range(2):
        train(table, keys)
    assert table.num_keys == 0
    train(table, keys)
    assert (table.describe(keys)["counts"] == 3).all()


def test_a_reused_row_inherits_nothing(make_table):
    table = make_table(slots=["accumulator"])
    assert table.slot("accumulator").shape == (table.first_row, 4)
    with located(table, [1], train=True, step=5) as rows:
        row = rows[0]
        table.rows[row] = 77.0
        table.slot("accumulator")[row] = 99.0
    assert table.erase([1, 2]) == 1

    with located(table, [2], train=True, step=6) as rows:
        assert rows[0] == row
        np.testing.assert_array_equal(table.rows[row], start_of([2])[0])
        np.testing.assert_array_equal(table.slot("accumulator")[row], 0.5)
        assert table.info([row])["counts"].tolist() == [1]


def test_a_key_that_was_erased_starts_anew(make_table):
    table = make_table(slots=["accumulator"])
    train(table, [1, 1, 2], step=5)
    write(table, [1, 2], 77.0)
    write(table, [1, 2], 99.0, slot="accumulator")
    crowd_out(table)
    assert table.erase([1, 3]) == 1

    train(table, [1, 2], step=6)

    np.testing.assert_array_equal(read(table, [1, 2]), [start_of([1])[0], [77.0] * 4])
    np.testing.assert_array_equal(read(table, [1, 2], slot="accumulator")[:, 0], [0.5, 99.0])
    assert table.describe([1, 2, 3])["counts"].tolist() == [1, 2, -1]


def test_rows_of_a_batch_in_flight_are_not_given_away(make_table):
    table = make_table()
    with located(table, [1], train=True) as rows:
        row = rows[0]
        table.erase([1])
        with located(table, [2], train=True) as during:
            assert during[0] != row
    with located(table, [3], train=True) as after:
        assert after[0] == row


def test_evictions(make_table):
    table = make_table()
    train(table, [1, 2, 3], step=1)
    train(table, [2], step=5)
    write(table, [2], 1.0)
    write(table, [3], 0.1)
    crowd_out(table)

    small = table.evict_small(0.1)
    old = table.evict_old(3, 5)

    assert (small, old) == (1, 1)
    assert has_row(table, [1, 2, 3]).tolist() == [False, True, False]


@pytest.mark.parametrize("max_keys", [16, 700])
def test_a_full_table_says_so_and_stays_usable(make_table, max_keys):
    table = make_table(max_keys=max_keys, rows_in_memory=320, name="user")
    keys = np.arange(max_keys)
    train(table, keys)
    others = {"keys": keys + 8, "values": np.ones([max_keys, 4], np.float32)}

    for fill in (lambda: train(table, keys[:5] + max_keys), lambda: table.insert(others)):
        with pytest.raises(RuntimeError, match="table 'user' is full.*storage_size"):
            fill()

        assert table.num_keys == max_keys
        assert has_row(table, keys).all()
    write(table, keys, keys)
    np.testing.assert_array_equal(read(table, keys)[:, 0], keys)
    table.erase([3])
    train(table, [max_keys])
    np.testing.assert_array_equal(read(table, [max_keys]), start_of([max_keys]))


def test_given_rows_that_do_not_all_fit_are_there_or_not(make_table):
    # Given a table with space for more rows
    table = make_table(max_keys=100, rows_in_memory=60)
    known = np.arange(40)
    train(table, known, step=3)

    # When more rows are given than fit, some of known keys
    keys = np.arange(30, 300)
    given = {
        "keys": keys,
        "values": np.repeat(keys, 4).reshape(-1, 4).astype(np.float32),
        "counts": np.full(270, 5),
        "versions": np.full(270, 9),
    }
    with pytest.raises(RuntimeError, match="table 'table' is full"):
        table.insert(given)

    # Then each key that is there has its given row, or the one that it had
    snapshot = table.snapshot()
    read = snapshot.read(0, snapshot.num_rows)
    rows = zip(read["values"].tolist(), read["counts"].tolist(), read["versions"].tolist())
    there = dict(zip(read["keys"].tolist(), rows))
    assert set(known.tolist()) <= set(there)
    assert len(there) == table.num_keys <= 100
    for key, row in there.items():
        own = [(start_of([key])[0].tolist(), 1, 3)] if key < 40 else []
        assert row in [*own, ([key] * 4, 5, 9)]


@pytest.mark.parametrize(
    "options",
    [{"admission": "counter"}, {**BLOOM, "counter_bytes": 1}],
    ids=["counter", "bloom"],
)
def test_what_a_filter_counted_is_described_without_a_row(make_table, options):
    table = make_table(**{**options, "min_count": 3})
    train(table, [1, 2, 2, 3, 3, 3])

    for _ in range(2):  # the first has changed nothing
        described = table.describe([1, 2, 3, 9])

        assert described["counts"].tolist() == [1, 2, 3, -1]
        assert described["tiers"].tolist() == [-1, -1, 0, -1]
        assert table.num_keys == 1


def test_readers_and_trainers_of_many_threads_agree(make_table):
    print("seed 3")
    options = {"distribution": "normal", "b": 1.0, "seed": 1, "rows_in_memory": 1500}
    table, expected = make_table(1, **options), make_table(1, **options)
    batches = [np.random.default_rng([3, t]).integers(0, 5000, 20_000) for t in range(4)]

    def work(batch):
        for part in np.array_split(batch, 20):
            table.locate(part, train=True)
            table.locate(part)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    keys, counts = np.unique(np.concatenate(batches), return_counts=True)
    train(expected, keys, at_once=1000)
    assert table.num_keys == len(keys)
    np.testing.assert_array_equal(table.describe(keys)["counts"], counts)
    for part in batches_of(keys, 1000):
        np.testing.assert_array_equal(
            *(read(each, part, at_once=1000) for each in (table, expected))
        )


@pytest.mark.parametrize("storage", storages.WITH_DISK)
@pytest.mark.parametrize("slots", [[], ["accumulator"]])
def test_a_table_that_is_crowded_has_its_rows_on_disk(storage, slots):
    """The condition that the tests above rely on."""
    table = storage.make_table(slots=slots)
    keys = np.arange(16)
    train(table, keys)

    crowd_out(table)

    assert (table.describe(keys)["tiers"] == (2 if storage.on_device else 1)).all()
    assert table.num_keys == 16
