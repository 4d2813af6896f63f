"""Tables in GPU memory with a budget of bytes."""

import ctypes
import os

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from table.budget_programs import resident_bytes
from table.steps import core, located
from table.storages import DRAM, HBM, HBM_DRAM, HBM_DRAM_SSDHASH, Storage

pytestmark = on_gpu
DIM, MEGABYTES = 16, 48
STORAGES = pytest.mark.parametrize("storage", [HBM, HBM_DRAM], ids=lambda storage: storage.name)


def make_table(storage, megabytes=MEGABYTES, options=None, **budget):
    budget = core.Budget(max_bytes=megabytes << 20, **budget)
    return storage.make_table(DIM, budget=budget, rows_in_memory=20_000, **(options or {}))


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


def options_of(admission):
    of_bloom = {"num_counters": 1 << 20, "num_hashes": 3, "counter_bytes": 2}
    min_count = {} if admission == "all" else {"min_count": 2}
    return {"admission": admission, **min_count, **(of_bloom if admission == "bloom" else {})}


@STORAGES
@pytest.mark.parametrize("num_shares", [0, 24])
@pytest.mark.parametrize("admission", ["all", "bloom", "counter"])
def test_the_keys_are_those_of_a_budget_of_as_many_keys(storage, num_shares, admission):
    # Given a table with a budget of bytes, and one in host memory of the keys that these are
    options = options_of(admission)
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
    assert table.budget_counts()["evicted"] > max_keys // 20


@STORAGES
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_each_share_of_a_ranks_bytes_is_a_table_of_its_own(storage, num_ranks):
    # Given ranks with the same bytes each, and for each share a table in host memory of as many
    # keys as its rank's bytes have space for in it
    ranks = [
        make_table(storage, 36, num_shares=24, rank=rank, num_ranks=num_ranks)
        for rank in range(num_ranks)
    ]
    (max_keys,) = {table.budget_counts()["max_keys"] for table in ranks}
    per_rank = 24 // num_ranks
    parts = [max_keys // per_rank + (s < max_keys % per_rank) for s in range(per_rank)]
    shares = [DRAM.make_table(DIM, budget=core.Budget(max_keys=n)) for n in parts * num_ranks]
    of_rank = [shares[first : first + per_rank] for first in range(0, 24, per_rank)]

    # When the keys of batches go to their ranks and shares, at last more new ones than places
    of_all = num_ranks * max_keys
    batches = [
        np.random.default_rng(step).integers(0, of_all, of_all // 3) + step * of_all // 4
        for step in range(10)
    ]
    for step, batch in enumerate([*batches, np.arange(2 * of_all) + 9 * of_all]):
        for tables in (ranks, shares):
            owners = core.key_owners(batch, len(tables))
            for number, table in enumerate(tables):
                train(table, batch[owners == number], step)

        # Then each rank stays within its bytes, and has the keys of its shares
        assert all(table.num_keys <= max_keys for table in ranks)
        assert all(table.memory_bytes <= 36 << 20 for table in ranks)
        if step % 5 == 0:
            for table, tables in zip(ranks, of_rank):
                assert content(table) == {k: v for of in tables for k, v in content(of).items()}
    for table, tables in zip(ranks, of_rank):
        counts = table.budget_counts()
        assert counts == {name: sum(of.budget_counts()[name] for of in tables) for name in counts}
        assert min(counts["evicted"], counts["without_place"]) > max_keys // 2


@pytest.mark.parametrize("admission", ["all", "bloom", "counter"])
@pytest.mark.parametrize("num_shares", [0, 24])
def test_keys_on_disk_are_within_the_budget(admission, num_shares):
    # Given a table whose memory has space for some of its keys, and one in host memory of as many
    options = options_of(admission)
    table = make_table(HBM_DRAM_SSDHASH, 96, options, num_shares=num_shares)
    max_keys = table.budget_counts()["max_keys"]
    of_keys = core.Budget(max_keys=max_keys, num_shares=num_shares)
    host = DRAM.make_table(DIM, budget=of_keys, **options)
    assert 50_000 < max_keys < 200_000  # of which 20,000 have rows in memory

    # When both see the same batches, in two of which a key comes
    size = max_keys // 20
    for step in range(50):
        keys = np.random.default_rng(step).integers(0, 2 * size, 2 * size) + step * size
        for of_table in (table, host):
            train(of_table, keys, step)

    # Then they have the same keys
    assert content(table) == content(host)
    assert table.budget_counts() == host.budget_counts()
    assert table.budget_counts()["evicted"] > max_keys // 8


def taken_bytes():
    """Memory of the GPU and of the host: page-locked memory is among a process's pages."""
    return resident_bytes() - free_bytes()


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other processes take GPU memory")
@pytest.mark.parametrize(
    "storage, hands_out, keep, admission",
    [
        (HBM, "nothing", 0.9, "all"),
        (HBM, "rows", 0.5, "all"),
        (HBM, "nothing", 0.9, "counter"),
        (HBM_DRAM, "nothing", 0.9, "all"),
        (HBM_DRAM, "rows", 0.5, "bloom"),
        (HBM_DRAM_SSDHASH, "nothing", 0.9, "all"),
    ],
    ids=lambda value: value.name if isinstance(value, Storage) else None,
)
def test_memory_seen_from_outside_stays_within_the_bytes(storage, hands_out, keep, admission):
    # Given a process that keeps memory for its calls, and a new table with a budget of bytes
    def train_all(table, max_keys):
        most = max_keys // 8 if admission == "counter" else 3 * max_keys
        if storage.has_disk:
            most = 8192  # a batch's rows are in memory together
        for step, size in enumerate([8192] * (5 * max_keys // 8192) + [most, 8192]):
            for _ in range(1 if admission == "all" else 2):
                train(table, np.arange(size) + step * 8192, step)
            yield
        assert 0.4 * max_keys < table.num_keys <= max_keys

    def make():
        budget = {"hands_out": hands_out, "keep": keep}
        options = {"slots": ["m"], **options_of(admission)}
        return make_table(storage, 2 * MEGABYTES, options, **budget)

    other = make()
    list(train_all(other, other.budget_counts()["max_keys"]))
    del other
    before = taken_bytes()
    table = make()

    # When keys pass through it
    taken = [taken_bytes() - before for _ in train_all(table, table.budget_counts()["max_keys"])]

    # Then the memory that it takes stays within the budget, of which it takes most
    assert max(taken) <= 2 * MEGABYTES << 20
    assert table.memory_bytes <= 2 * MEGABYTES << 20
    assert max(taken) >= (0.2 if storage.has_disk else 0.5) * (2 * MEGABYTES << 20)


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
