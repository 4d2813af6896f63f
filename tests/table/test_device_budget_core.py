"""Tables with a budget in GPU memory: the keys that go are those of host memory."""

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from support.oracles.budget import zipf_batches
from table.budget_programs import POLICIES
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


def make_tables(keeps_time=False, **budget):
    return [
        storage.make_table(DIM, budget=core.Budget(**budget), keeps_time=keeps_time)
        for storage in (DRAM, HBM)
    ]


@pytest.mark.parametrize("evict", POLICIES)
@pytest.mark.parametrize("keep", [0.5, 0.97])
@pytest.mark.parametrize("num_shares", [0, 24])
@pytest.mark.parametrize("size", [3_000, 60_000])
def test_the_same_keys_go_as_in_host_memory(evict, keep, num_shares, size):
    # Given a table in either memory, with space for fewer keys than come
    budget = {"max_keys": 50_000, "keep": keep, "evict": evict, "num_shares": num_shares}
    tables = make_tables(keeps_time=evict == "earliest", **budget, **POLICIES[evict])
    host, device = tables
    batches = zipf_batches(seed=8, num_batches=60, size=size, num_keys=300_000, exponent=0.8)
    random = np.random.default_rng(8)

    # When both see the same batches, some of which train in the same step, with scores and times
    for number, batch in enumerate(batches):
        scores = random.normal(size=size).astype(np.float32)
        for table in tables:
            if evict == "earliest":
                table.set_time(1 + number // 2)
            train(table, batch, step=number // 3)
            if evict == "score":
                table.set_scores(batch, scores)
        if number % 6 == 5:
            # Then they have the same keys, and the keys without a place were the same
            assert content(device) == content(host)
    assert device.budget_counts() == host.budget_counts()
    assert device.budget_counts()["evicted"] > 10_000


@pytest.mark.parametrize("hands_out", ["keys", "rows"])
def test_keys_that_nobody_takes_in_time_are_missed(hands_out):
    # Given more keys that go than wait to be taken
    _, table = make_tables(max_keys=1000, hands_out=hands_out)
    for step in range(100):
        train(table, np.arange(1000 * step, 1000 * step + 1000), step)
    # When they are taken
    taken = table.take_evicted()
    # Then each is there once, with its row, or is missed
    missed = table.budget_counts()["missed"]
    keys = taken["keys"]
    assert len(set(keys.tolist())) == len(keys) >= 16384
    assert len(keys) + missed == table.budget_counts()["evicted"] == 99_000
    np.testing.assert_array_equal(taken["versions"], keys // 1000)
    if hands_out == "rows":
        np.testing.assert_array_equal(taken["values"], start_of(keys, DIM))


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


@pytest.mark.parametrize("num_shares", [0, 24])
def test_given_rows_find_places_as_in_host_memory(num_shares):
    tables = make_tables(max_keys=3000, evict="smallest_norm", num_shares=num_shares)
    random = np.random.default_rng(6)
    for step in range(8):
        keys = random.integers(0, 9000, 2500)
        values = random.integers(-4, 5, (2500, DIM)).astype(np.float32)
        for table in tables:
            table.insert({"keys": keys, "values": values})
            train(table, keys[:100], step)
        assert content(tables[1]) == content(tables[0])
    host, device = (table.budget_counts() for table in tables)
    assert device == host
    assert device["evicted"] > 1000 and device["without_place"] > 1000


@pytest.mark.parametrize(
    "options",
    [
        {"budget": {"max_bytes": 1 << 20}},
        {"budget": {"max_keys": 10}, "admission": "counter", "min_count": 2},
        {"budget": {"max_keys": 10}, "matrix": None},
        {"budget": {"max_keys": 10}, "device_bytes": 1 << 20},
        {"budget": {"max_keys": 10, "num_shares": 24}},
    ],
)
def test_a_budget_that_gpu_memory_cannot_keep_is_refused(options):
    options = {"matrix": np.zeros((1, DIM), np.float32), **options}
    budget = core.Budget(**options.pop("budget"))
    with pytest.raises(RuntimeError, match="table 'table': expected"):
        DeviceTable(dim=DIM, budget=budget, **options)
