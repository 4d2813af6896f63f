"""Tables whose rows go to disk where memory is full: what only they have, and that training them
leaves the same bits."""

import threading

import numpy as np
import pytest

core = pytest.importorskip("support.core")

DIM = 4
INFO_BYTES = 16


def memory_of(num_rows, num_slots=1):
    return num_rows * (INFO_BYTES + 4 * DIM * (1 + num_slots))


def make_table(num_rows=None, *, disk=None, **options):
    """A table in memory alone, or one that has so many rows in memory."""
    if num_rows is not None:
        options.update(max_bytes=memory_of(num_rows), disk=disk or core.DiskTier())
    table = core.HostTable(dim=DIM, distribution="normal", b=1.0, seed=5, **options)
    table.slot("accumulator", initial=0.5)
    return table


def train(table, keys, step):
    """One step of something like Adagrad, whose result depends on values, slots and order."""
    batch = table.begin_batch()
    rows = np.unique(table.locate(keys, train=True, step=step, batch=batch))
    rows = rows[rows >= table.first_row]
    table.before_write(rows)
    gradient = np.sin(table.rows[rows] * (1 + step % 7))
    table.slot("accumulator")[rows] += gradient**2
    table.rows[rows] -= 0.1 * gradient / np.sqrt(table.slot("accumulator")[rows])
    table.end_batch(batch)


def read(table, keys):
    batch = table.begin_batch()
    rows = table.locate(keys, batch=batch)
    values = table.rows[rows].copy()
    table.end_batch(batch)
    return values


def content_of(table):
    """Everything in a snapshot, in the order of the keys."""
    snapshot = table.snapshot()
    parts = [snapshot.read(at, at + 37) for at in range(0, snapshot.num_rows, 37)]
    keys = np.concatenate([p["keys"] for p in parts])
    order = np.argsort(keys)
    rows = {
        name: np.concatenate([p[name] for p in parts])[order]
        for name in ("keys", "counts", "versions", "values")
    }
    for s in range(len(parts[0]["slots"])):
        rows[f"slot {s}"] = np.concatenate([p["slots"][s] for p in parts])[order]
    return rows


def assert_equal_content(table, expected):
    actual, rows = content_of(table), content_of(expected)
    assert actual.keys() == rows.keys()
    for name, values in rows.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=name)


@pytest.mark.parametrize("cache_strategy", ["least_recent", "least_frequent"])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_small_memory_trains_to_the_same_bits(cache_strategy, threads):
    print("seed 1")
    rng = np.random.default_rng(1)
    disk = core.DiskTier(cache_strategy=cache_strategy)
    table = make_table(1500, disk=disk, num_threads=threads)
    in_memory = make_table()

    for step in range(100):
        keys = rng.zipf(1.3, 500) % 20_000
        train(table, keys, step)
        train(in_memory, keys, step)

    tiers = table.describe(np.arange(20_000))["tiers"]
    assert (tiers == 0).sum() <= 1500 < (tiers == 1).sum()
    assert_equal_content(table, in_memory)


def test_reading_prefetches_rows_into_memory_and_counts_nothing():
    table = make_table(10)
    for begin in range(0, 30, 10):
        train(table, np.arange(begin, begin + 10), step=begin)
    before = table.describe(np.arange(30))

    read(table, np.arange(10))
    after = table.describe([*range(30), 99])

    assert before["tiers"].tolist() == [1] * 20 + [0] * 10
    assert after["tiers"].tolist() == [0] * 10 + [1] * 20 + [-1]
    assert after["counts"].tolist() == [1] * 30 + [-1]
    assert after["versions"].tolist() == [0] * 10 + [10] * 10 + [20] * 10 + [-1]
    assert table.num_keys == 30


@pytest.mark.parametrize("cache_strategy, stays", [("least_recent", 2), ("least_frequent", 1)])
def test_which_rows_leave_memory_first(cache_strategy, stays):
    table = make_table(2, disk=core.DiskTier(cache_strategy=cache_strategy))
    for step, key in enumerate([1, 1, 1, 2]):
        train(table, [key], step)

    train(table, [3], step=4)

    tiers = table.describe([1, 2, 3])["tiers"]
    assert np.flatnonzero(tiers == 0).tolist() == [stays - 1, 2]


@pytest.mark.parametrize("is_training", [True, False])
def test_rows_of_batches_in_flight_stay_in_memory(is_training):
    table = make_table(10)
    train(table, np.arange(8), step=0)
    batch = table.begin_batch()
    rows = table.locate(np.arange(8), train=is_training, batch=batch)
    values = table.rows[rows].copy()

    train(table, [100, 101], step=1)
    with pytest.raises(RuntimeError, match="table 'table'.*1 rows too many: it has 10 rows"):
        train(table, [102, 103, 104], step=2)

    np.testing.assert_array_equal(table.rows[rows], values)
    assert (table.describe(np.arange(8))["tiers"] == 0).all()
    table.end_batch(batch)
    train(table, np.arange(200, 210), step=3)
    assert table.num_keys == 20


def test_a_batch_that_does_not_fit_leaves_the_table_usable():
    table, in_memory = make_table(10, name="user"), make_table()
    for each in (table, in_memory):
        train(each, np.arange(10), step=0)
        train(each, np.arange(10, 20), step=1)

    for is_training in (True, False):
        with pytest.raises(RuntimeError, match="table 'user'.*10 rows.*storage_size"):
            table.locate(np.arange(20), train=is_training)

    assert_equal_content(table, in_memory)
    train(table, np.arange(10), step=2)
    train(in_memory, np.arange(10), step=2)
    assert_equal_content(table, in_memory)


def test_memory_without_a_size():
    with pytest.raises(RuntimeError, match="table 'user'.*expected the size of its memory"):
        core.HostTable(dim=1, disk=core.DiskTier(), name="user")


def test_a_slot_that_comes_late_starts_anew_on_disk_too():
    table = core.HostTable(dim=DIM, max_bytes=memory_of(10, 0), disk=core.DiskTier())
    for begin in range(0, 30, 10):
        table.locate(np.arange(begin, begin + 10), train=True)

    table.slot("m", initial=0.25)
    rows = np.concatenate([table.locate([key], train=True) for key in range(3)])

    np.testing.assert_array_equal(table.slot("m")[rows], 0.25)
    snapshot = table.snapshot()
    np.testing.assert_array_equal(snapshot.read(0, snapshot.num_rows)["slots"][0], 0.25)


def test_a_snapshot_is_of_one_instant_in_both_tiers():
    table, frozen = make_table(100), make_table()
    for step in range(10):
        keys = np.arange(step * 50, step * 50 + 60)
        train(table, keys, step)
        train(frozen, keys, step)
    for each in (table, frozen):
        each.erase(np.arange(490, 510))  # which leaves free rows in memory
    snapshot = table.snapshot()

    parts = []
    for at in range(0, snapshot.num_rows, 25):
        parts.append(snapshot.read(at, at + 25))
        train(table, np.arange(at, at + 60), step=20)
        table.erase([at, at + 300])

    keys = np.concatenate([p["keys"] for p in parts])
    order = np.argsort(keys)
    expected = content_of(frozen)
    np.testing.assert_array_equal(keys[order], expected["keys"])
    for name in ("counts", "versions", "values"):
        actual = np.concatenate([p[name] for p in parts])[order]
        np.testing.assert_array_equal(actual, expected[name])


def locate_in_a_batch(table, keys, is_training):
    """Rows have counts as long as the batch that has located them is in flight."""
    batch = table.begin_batch()
    try:
        rows = table.locate(keys, train=is_training, batch=batch)
        assert (table.info(rows[rows >= table.first_row])["counts"] > 0).all()
    finally:
        table.end_batch(batch)


def test_readers_and_trainers_of_many_threads_agree():
    print("seed 3")
    table, expected = make_table(3000), make_table()
    batches = [np.random.default_rng([3, t]).integers(0, 10_000, 6000) for t in range(4)]

    def work(batch):
        for part in np.array_split(batch, 12):
            for is_training in (True, False):
                locate_in_a_batch(table, part, is_training)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for batch in batches:
        expected.locate(batch, train=True)
    assert_equal_content(table, expected)
