"""Tables in GPU memory with a budget of bytes."""

import ctypes
import os

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from table.steps import core, located
from table.storages import DRAM, HBM, HBM_DRAM

pytestmark = on_gpu
DIM, MEGABYTES = 16, 48
STORAGES = pytest.mark.parametrize("storage", [HBM, HBM_DRAM], ids=lambda storage: storage.name)


def make_table(storage, megabytes=MEGABYTES, options=None, **budget):
    budget = core.Budget(max_bytes=megabytes << 20, **budget)
    return storage.make_table(DIM, budget=budget, rows_in_memory=10_000, **(options or {}))


def train(table, keys, step):
    with located(table, np.asarray(keys), train=True, step=step) as rows:
        return rows.copy()


def content(table):
    """{key: (count, version)}"""
    snapshot = table.snapshot()
    read = snapshot.read(0, snapshot.num_rows)
    return dict(zip(read["keys"].tolist(), zip(read["counts"].tolist(), read["versions"].tolist())))


def free_bytes():
    """The GPU's free memory, as its driver says."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


@STORAGES
@pytest.mark.parametrize("num_shares", [0, 24])
@pytest.mark.parametrize("admission", ["all", "bloom"])
def test_the_keys_are_those_of_a_budget_of_as_many_keys(storage, num_shares, admission):
    # Given a table with a budget of bytes, and one in host memory of the keys that these are
    options = {"admission": admission}
    if admission == "bloom":
        options.update(min_count=2, num_counters=1 << 20, num_hashes=3, counter_bytes=2)
    table = make_table(storage, options=options, num_shares=num_shares)
    max_keys = table.budget_counts()["max_keys"]
    of_keys = core.Budget(max_keys=max_keys, num_shares=num_shares)
    host = DRAM.make_table(DIM, budget=of_keys, **options)
    assert 20_000 < max_keys < 400_000
    sizes = [max_keys // 10] * 30 + [2 * max_keys, 5, max_keys // 2]

    # When both see the same batches, of which one has more new keys than there are places
    for step, size in enumerate(sizes):
        first = max_keys // 5 * step
        batch = np.random.default_rng(step).integers(first, first + max(size, max_keys), size)
        for of_table in (table, host):
            train(of_table, batch, step)

        # Then they have the same keys
        if step % 8 == 7 or step > 29:
            assert content(table) == content(host)
    assert table.budget_counts() == host.budget_counts()
    assert table.budget_counts()["evicted"] > 20_000


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other processes take GPU memory")
@pytest.mark.parametrize("hands_out, keep", [("nothing", 0.9), ("rows", 0.5)])
def test_memory_seen_from_outside_stays_within_the_bytes(hands_out, keep):
    # Given a process that keeps memory for its calls, and a new table with a budget of bytes
    def train_all(table, max_keys):
        for step, size in enumerate([8192] * (5 * max_keys // 8192) + [3 * max_keys, 8192]):
            train(table, np.arange(size) + step * 8192, step)
            yield
        assert 0.4 * max_keys < table.num_keys <= max_keys

    def make():
        budget = {"hands_out": hands_out, "keep": keep}
        return make_table(HBM, 2 * MEGABYTES, {"slots": ["m"]}, **budget)

    other = make()
    list(train_all(other, other.budget_counts()["max_keys"]))
    del other
    before = free_bytes()
    table = make()

    # When keys pass through it
    taken = [before - free_bytes() for _ in train_all(table, table.budget_counts()["max_keys"])]

    # Then the GPU's memory that it takes stays within the budget, of which it takes most
    assert max(taken) <= 2 * MEGABYTES << 20
    assert table.memory_bytes <= 2 * MEGABYTES << 20
    assert max(taken) >= 0.5 * (2 * MEGABYTES << 20)


@STORAGES
def test_a_slot_that_comes_late_leaves_space_for_fewer_keys(storage):
    table = make_table(storage)
    without = table.budget_counts()["max_keys"]
    train(table, np.arange(1000), step=0)

    table.slot("m", initial=0.5)

    with_slot = table.budget_counts()["max_keys"]
    assert 0.5 * without < with_slot < 0.8 * without
    for step in range(1, 6):
        train(table, np.arange(without) + step * without, step)
    assert table.num_keys == with_slot


def test_a_slot_without_space_is_refused_and_the_table_trains_on():
    table = make_table(HBM)
    max_keys = table.budget_counts()["max_keys"]
    train(table, np.arange(max_keys), step=0)

    with pytest.raises(RuntimeError, match="table 'table', slot 'm': expected a larger budget"):
        table.slot("m", initial=0.5)

    train(table, np.arange(max_keys // 2) + max_keys, step=1)
    assert table.num_keys == table.budget_counts()["max_keys"] == max_keys


@STORAGES
def test_rows_that_are_left_are_lent(storage):
    # Given a table of bytes whose keys start as no row of a matrix
    options = {"distribution": "uniform", "a": 1, "b": 2, "seed": 5}
    table = make_table(storage, options=options)
    max_keys = table.budget_counts()["max_keys"]

    # When each batch has more new keys than there are places
    for step in range(4):
        keys = np.arange(2 * max_keys) + 2 * max_keys * step
        whole = DRAM.make_table(DIM, **options)
        expected = whole.locate(keys, train=True)
        with located(table, keys, train=True, step=step) as rows:
            read = table.rows[rows]
            has_row = rows >= table.first_row

        # Then some read rows that are lent, and the others the constant
        assert max_keys < has_row.sum() == len(set(rows[has_row].tolist())) < 2 * max_keys
        np.testing.assert_array_equal(read[has_row], whole.rows[expected[has_row]])
        assert (read[~has_row] == 0).all()
        assert table.num_keys == max_keys


def test_given_rows_find_places():
    table = make_table(HBM)
    max_keys = table.budget_counts()["max_keys"]
    keys = np.arange(2 * max_keys)

    table.insert({"keys": keys, "values": np.repeat(keys, DIM).reshape(-1, DIM).astype(np.float32)})

    assert 0.85 * max_keys <= table.num_keys <= max_keys
    rows = table.locate(keys)
    kept = rows >= table.first_row
    np.testing.assert_array_equal(table.rows[rows[kept]][:, 0], keys[kept])


def test_tables_of_one_call_claim_their_own():
    # Given a table of bytes between two without a budget
    matrix = np.zeros((1, DIM), np.float32)
    budgets = (None, core.Budget(max_bytes=MEGABYTES << 20), None)
    tables = [core.DeviceTable(dim=DIM, matrix=matrix, budget=budget) for budget in budgets]
    max_keys = tables[1].budget_counts()["max_keys"]

    # When one call trains the same keys in all, of which the middle one has no place for some
    keys = np.tile(np.arange(max_keys + 1000), 2)
    rows = [core.DeviceArray(np.zeros(len(keys), np.int64)) for _ in tables]
    core.locate_rows(
        [(t, core.DeviceArray(keys), r) for t, r in zip(tables, rows)], train=True, step=0
    )

    # Then each has what it may have, and both occurrences of a key one row
    assert [table.num_keys for table in tables] == [max_keys + 1000, max_keys, max_keys + 1000]
    for array in rows:
        first, second = array.numpy().reshape(2, -1)
        np.testing.assert_array_equal(first, second)
    assert tables[1].budget_counts()["without_place"] == 1000
