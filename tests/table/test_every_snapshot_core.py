"""The contract of snapshots of a keyed table in every storage, with an eviction or without."""

import threading

import numpy as np
import pytest
from table.steps import (
    BLOOM,
    batches_of,
    content_of_snapshot,
    core,
    counted_of,
    crowd_out,
    has_row,
    located,
    read,
    restore,
    start_of,
    train,
    write,
)


@pytest.mark.parametrize("max_keys", [16, 700])
def test_a_full_table_has_room_for_others_once_keys_are_evicted_with_a_snapshot(
    make_table, max_keys
):
    table = make_table(max_keys=max_keys, rows_in_memory=320)
    keys = np.arange(max_keys)
    train(table, keys, step=1)
    train(table, keys[:5], step=9)

    snapshot = table.snapshot(evict={"steps_to_live": 2}, step=9)
    train(table, keys[5:] + max_keys, step=10)

    assert sorted(content_of_snapshot(snapshot)) == keys[:5].tolist()
    assert has_row(table, np.arange(2 * max_keys)).tolist() == [True] * 5 + [False] * max_keys + [
        True
    ] * (max_keys - 5)


def test_evictions_of_a_snapshot_that_nobody_reads_are_in_the_next_changes(make_table, tmp_path):
    table = make_table()
    train(table, np.arange(40), step=1)
    full = table.snapshot()
    core.write_table(full, str(tmp_path / "full"), save_id=1)
    full.keep()
    del full

    nobodys = table.snapshot(evict={"steps_to_live": 0}, step=2)
    train(table, [3], step=3)
    del nobodys
    core.write_table(table.snapshot(True), str(tmp_path / "changes"), save_id=2, changes_only=True)
    train(table, [50])
    restore(table, [str(tmp_path / "full"), str(tmp_path / "changes")])

    assert has_row(table, np.arange(60)).nonzero()[0].tolist() == [3]


def test_keys_that_expire_and_come_again_while_they_are_saved_are_handed_out_once(make_table):
    # Given two tables with rows in all tiers, whose old keys expire with a snapshot
    budget = core.Budget(max_keys=200, hands_out="rows")
    tables = [make_table(name=name, rows_in_memory=24, budget=budget) for name in "ab"]
    old, young = np.arange(100), np.arange(100, 160)
    for table in tables:
        train(table, old, step=1)
        write(table, old, old + 0.5)
        train(table, young, step=9)
    snapshots = [table.snapshot(evict={"steps_to_live": 2}, step=9) for table in tables]

    # When some of them are read, and some trained, before it was written
    for table in tables:
        np.testing.assert_array_equal(read(table, old[:10]), start_of(old[:10]))
        train(table, old[20:30], step=10)
    found = [sorted(content_of_snapshot(snapshot)) for snapshot in snapshots]
    del snapshots

    # Then it has the others; the old ones are handed out with their rows, and start anew
    assert found == [young.tolist()] * 2
    for table in tables:
        evicted = table.take_evicted()
        assert sorted(evicted["keys"].tolist()) == old.tolist()
        np.testing.assert_array_equal(evicted["values"], (evicted["keys"] + 0.5)[:, None] + [0] * 4)
        assert table.budget_counts()["missed"] == 0
        np.testing.assert_array_equal(read(table, old[20:30]), start_of(old[20:30]))
        assert has_row(table, old).nonzero()[0].tolist() == list(range(20, 30))


def test_a_row_that_became_small_after_a_save_has_judged_it_stays(make_table):
    table = make_table()
    with located(table, [1], train=True) as rows:
        snapshot = table.snapshot(evict={"l2_weight": 0.5})
        table.before_write(rows)
        table.rows[rows] = 0.1
    crowd_out(table)

    np.testing.assert_array_equal(read(table, [1]), np.full([1, 4], np.float32(0.1)))
    assert content_of_snapshot(snapshot) == {1: (start_of(1).tolist(), 1)}
    del snapshot
    assert has_row(table, [1]).tolist() == [True]


def test_keys_are_evicted_while_threads_train_and_read(make_table):
    """Each key either is old when a snapshot is taken, and gets initial values afterwards, or keeps
    its row and its count."""
    table = make_table(rows_in_memory=200)
    keys = np.arange(400)
    train(table, keys, step=1)
    young = keys[::3]
    train(table, young, step=8)
    snapshot = table.snapshot(evict={"steps_to_live": 5}, step=8)

    def work(keys, **access):
        for part in batches_of(keys):
            table.locate(part, **access)

    threads = [
        threading.Thread(target=work, args=[part], kwargs={"train": True, "step": 9})
        for part in (keys[:200], keys[200:])
    ] + [threading.Thread(target=work, args=[keys]) for _ in range(2)]
    for thread in threads:
        thread.start()
    found = content_of_snapshot(snapshot, rows_at_once=16)
    for thread in threads:
        thread.join()
    del snapshot

    assert sorted(found) == young.tolist()
    assert table.num_keys == 400
    assert table.describe(keys)["counts"].tolist() == [3 if k % 3 == 0 else 1 for k in keys]


def test_a_snapshot_is_of_one_instant(make_table):
    table = make_table(rows_in_memory=300)
    keys = np.arange(1000)
    train(table, keys)
    table.erase([999])

    snapshot = table.snapshot()
    train(table, keys[:500])
    write(table, keys[:500], -1.0)
    table.erase(keys[500:600])
    train(table, keys + 2000)

    assert content_of_snapshot(snapshot) == {k: (start_of(k).tolist(), 1) for k in range(999)}


def test_what_a_snapshot_says_was_counted_is_of_its_instant(make_table):
    table = make_table(admission="counter", min_count=3)
    train(table, [1, 2, 2, 3, 3, 3, 7])
    snapshot = table.snapshot()
    train(table, [1, 1, 2, 4])
    table.erase([3, 4, 7])
    train(table, [3, 4, 5, 5])

    assert counted_of(snapshot) == {1: 1, 2: 2, 7: 1}
    del snapshot
    assert counted_of(table.snapshot()) == {3: 1, 4: 1, 5: 2}


def test_a_snapshot_has_the_counters_of_a_bloom_filter_at_its_instant(make_table):
    table, same = (make_table(**BLOOM, counter_bytes=2) for _ in range(2))
    for each in (table, same):
        train(each, np.arange(500))
    expected = same.snapshot().admission["counters"]
    snapshot = table.snapshot()
    train(table, np.arange(300, 900))

    counted = snapshot.admission["counters"]

    assert counted == expected
    del snapshot
    assert table.snapshot().admission["counters"] != expected


def test_a_restart_while_a_snapshot_waits_leaves_it_its_bloom_filter(make_table):
    table = make_table(**BLOOM)
    train(table, np.arange(500))
    expected = table.snapshot().admission["counters"]
    snapshot = table.snapshot()

    table.clear()

    assert snapshot.admission["counters"] == expected


def test_a_snapshot_of_changes_has_what_changed_since_the_last_full_one(make_table):
    # Given a full snapshot that was kept while a batch was in flight, and changes since
    table = make_table()
    train(table, np.arange(100))
    with located(table, [50], train=True):
        full = table.snapshot()
        assert len(content_of_snapshot(full)) == 100
        full.keep()
        del full
    train(table, [3, 200])
    table.erase([4])
    # When other rows are read
    for keys in (np.arange(60, 90), [60]):
        read(table, keys, at_once=4)
        # Then each snapshot has the changes, and no other row
        changes = table.snapshot(changes_only=True)
        assert set(content_of_snapshot(changes)) == {3, 50, 200}
        assert changes.erased.tolist() == [4]
        changes.keep()
        del changes
