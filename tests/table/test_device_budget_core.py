"""Tables with a budget in GPU memory: the keys that go are those of host memory."""

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from support.oracles.budget import zipf_batches
from table.device_tables import DeviceTable, core
from table.steps import located, start_of
from table.storages import DRAM, HBM

pytestmark = on_gpu
DIM = 3


def content(table):
    """{key: (count, version)}"""
    snapshot = table.snapshot()
    read = snapshot.read(0, snapshot.num_rows)
    return dict(zip(read["keys"].tolist(), zip(read["counts"].tolist(), read["versions"].tolist())))


def train(table, keys, step):
    with located(table, keys, train=True, step=step) as rows:
        return rows.copy()


def make_tables(**budget):
    return [storage.make_table(DIM, budget=core.Budget(**budget)) for storage in (DRAM, HBM)]


@pytest.mark.parametrize("evict", ["least_recent", "least_frequent"])
@pytest.mark.parametrize("keep", [0.5, 0.97])
@pytest.mark.parametrize("size", [3_000, 60_000])
def test_the_same_keys_go_as_in_host_memory(evict, keep, size):
    # Given a table in either memory, with space for fewer keys than come
    host, device = make_tables(max_keys=50_000, keep=keep, evict=evict)
    batches = zipf_batches(seed=8, num_batches=60, size=size, num_keys=300_000, exponent=0.8)

    # When both see the same batches, some of which train in the same step
    for number, batch in enumerate(batches):
        for table in (host, device):
            train(table, batch, step=number // 3)
        if number % 6 == 5:
            # Then they have the same keys, and the keys without a place were the same
            assert content(device) == content(host)
    assert device.budget_counts() == host.budget_counts()
    assert device.budget_counts()["evicted"] > 10_000


def test_rows_are_the_same_on_every_run_and_those_of_evicted_keys_are_used_again():
    batches = zipf_batches(seed=9, num_batches=30, size=4000, num_keys=50_000)
    runs = []
    for _ in range(2):
        table = HBM.make_table(DIM, budget=core.Budget(max_keys=10_000))
        runs.append([train(table, batch, step) for step, batch in enumerate(batches)])

    for ours, theirs in zip(*runs):
        np.testing.assert_array_equal(ours, theirs)
    assert max(rows.max() for rows in runs[0]) < table.first_row + 10_000


def test_a_row_that_is_used_again_starts_anew():
    table = HBM.make_table(DIM, slots=["m"], budget=core.Budget(max_keys=64, keep=0.5))
    for step in range(40):
        keys = np.arange(16 * step, 16 * step + 16)
        with located(table, keys, train=True, step=step) as rows:
            np.testing.assert_array_equal(table.rows[rows], start_of(keys, DIM))
            assert (table.slot("m")[rows] == 0.5).all()
            table.rows[rows] = -1
            table.slot("m")[rows] = -1


def test_rows_of_keys_that_go_wait_for_other_batches_that_read_them():
    # Given a batch in flight that reads a key's row
    table = HBM.make_table(DIM, budget=core.Budget(max_keys=32, keep=0.5))
    train(table, np.arange(32), step=0)
    batch = table.begin_batch()
    held = table.locate(np.arange(32), batch=batch)

    # When keys go, Then their rows are nobody's as long as it is in flight
    rows = train(table, np.arange(100, 116), step=1)
    assert not set(rows.tolist()) & set(held.tolist())
    np.testing.assert_array_equal(table.rows[held], start_of(np.arange(32), DIM))
    table.end_batch(batch)

    # And are given away afterwards
    for step in range(2, 10):
        rows = train(table, np.arange(100 * step, 100 * step + 16), step=step)
    assert set(rows.tolist()) & set(held.tolist())


def test_followers_of_changes_learn_which_keys_went():
    table = HBM.make_table(DIM, budget=core.Budget(max_keys=1000))
    train(table, np.arange(1000), step=0)
    snapshot = table.snapshot()
    snapshot.keep()
    del snapshot

    train(table, np.arange(1000, 1200), step=1)

    snapshot = table.snapshot(changes_only=True)
    erased = snapshot.erased.tolist()
    del snapshot
    left = content(table)
    assert sorted(erased) == sorted(set(range(1000)) - set(left))
    assert len(erased) == table.budget_counts()["evicted"] == 200


def test_a_snapshot_has_the_rows_of_keys_that_go_while_it_is_read():
    table = HBM.make_table(DIM, budget=core.Budget(max_keys=500, keep=0.4))
    train(table, np.arange(500), step=3)
    snapshot = table.snapshot()

    train(table, np.arange(1000, 1400), step=4)

    read = snapshot.read(0, snapshot.num_rows)
    assert sorted(read["keys"].tolist()) == list(range(500))
    assert set(read["versions"].tolist()) == {3}
    np.testing.assert_array_equal(read["values"], start_of(read["keys"], DIM))
    del snapshot
    assert len(content(table)) == 500


def test_tables_of_one_call_keep_their_own_budgets():
    matrix = np.zeros((1, DIM), np.float32)
    tables = [
        core.DeviceTable(dim=DIM, matrix=matrix, budget=budget)
        for budget in (core.Budget(max_keys=100), None, core.Budget(max_keys=40, keep=0.5))
    ]
    for step in range(20):
        keys = np.arange(30 * step, 30 * step + 30)
        core.locate_rows(
            [(t, core.DeviceArray(keys), core.DeviceArray(np.zeros(30, np.int64))) for t in tables],
            train=True,
            step=step,
        )

    assert [table.num_keys for table in tables] == [100, 600, 40]


def test_erased_keys_and_cleared_tables_leave_places():
    host, device = make_tables(max_keys=300, keep=0.8)
    batches = zipf_batches(seed=4, num_batches=60, size=50, num_keys=2000)
    for step, batch in enumerate(batches):
        for table in (host, device):
            if step % 7 == 6:
                table.erase(batch[:20].astype(np.int64))
            if step == 30:
                table.clear()
            train(table, batch, step)
        assert content(device) == content(host)
    assert device.budget_counts()["without_place"] == 0


def test_more_rows_than_the_budget_are_not_restored():
    table = HBM.make_table(DIM, budget=core.Budget(max_keys=10))
    rows = {"keys": np.arange(11), "values": np.zeros((11, DIM), np.float32)}

    with pytest.raises(RuntimeError, match="expected at most 10 keys, its budget, got 11"):
        table.insert(rows)

    assert table.num_keys == 0


@pytest.mark.parametrize(
    "budget",
    [
        {"max_bytes": 1 << 20},
        {"max_keys": 10, "evict": "smallest_norm"},
        {"max_keys": 10, "safe_steps": 2},
        {"max_keys": 10, "hands_out": "keys"},
        {"max_keys": 12, "num_shares": 6},
    ],
)
def test_a_budget_that_gpu_memory_cannot_keep_is_refused(budget):
    with pytest.raises(RuntimeError, match="expected, in GPU memory, a budget of keys of its rank"):
        DeviceTable(dim=DIM, matrix=np.zeros((1, DIM), np.float32), budget=core.Budget(**budget))
