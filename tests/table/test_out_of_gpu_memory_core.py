"""GPU memory that runs out: an error each time that says what is wanted and left, after which
tables have all the rows that they had, and work."""

import contextlib
import ctypes
import os

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from table.steps import core, read, start_of, train
from table.storages import HBM, HBM_DRAM, HBM_DRAM_SSDHASH
from table.test_device_budget_bytes_core import free_bytes

pytestmark = [
    *on_gpu,
    pytest.mark.skipif(
        "PYTEST_XDIST_WORKER" in os.environ, reason="other processes need GPU memory"
    ),
]
DIM, FEW, MANY = 4, 500, 100_000
ROUNDS = [0, 2, 4, 8, 32]  # megabytes that are left
FOR_CALLS = 256  # megabytes, for the calls after an error


class GpuMemory:
    """GPU memory that another program takes."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.taken = []

    def take(self, num_bytes):
        address = ctypes.c_uint64()
        result = self.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(num_bytes))
        if result == 0:
            self.taken.append(address)
        return result == 0

    def take_all_but(self, num_bytes):
        part = 1 << 30
        while part >= 1 << 20:
            if free_bytes() - part <= num_bytes or not self.take(part):
                part //= 2

    def give(self, first, end=None):
        """The parts that were taken from the first on, until one."""
        for address in self.taken[first:end]:
            assert self.driver.cuMemFree_v2(address) == 0
        del self.taken[first:end]


@contextlib.contextmanager
def memory_left(megabytes):
    """Gives a function that leaves FOR_CALLS more."""
    memory = GpuMemory()
    assert memory.take(FOR_CALLS << 20)
    memory.take_all_but(megabytes << 20)
    try:
        yield lambda: memory.give(0, 1)
    finally:
        memory.give(0)


def given(keys):
    """Rows whose values are their keys'."""
    values = np.repeat((keys % 1000 + 100)[:, None], DIM, 1).astype(np.float32)
    ones = np.ones(len(keys), np.int64)
    return {"keys": keys, "values": values, "counts": ones, "versions": ones}


def call_of(table, keys, **access):
    """A batch of a table, for which arrays are in GPU memory already."""
    keys, rows = core.DeviceArray(keys), core.DeviceArray(np.zeros(len(keys), np.int64))

    def call():
        batch = table.begin_batch()
        try:
            table.table.locate(keys, rows, batch=batch, **access)
        finally:
            table.end_batch(batch)

    return call


def works(op, tables, turn):
    """The work of each table in a turn: with new keys, or, to be read, with known ones."""
    new, known = np.arange(MANY) + (turn + 1) * 10**9, np.arange(MANY) + MANY * (turn % 3)
    if op == "given":
        return [lambda table=table: table.insert(given(new)) for table in tables]
    if op == "trained":
        return [call_of(table, new, train=True, step=turn + 3) for table in tables]
    return [call_of(table, known) for table in tables]


def assert_has_all(table, op):
    """Each key once, with the values that it got."""
    snapshot = table.snapshot()
    found = snapshot.read(0, snapshot.num_rows)
    keys, num_keys = found["keys"], len(found["keys"])
    assert len(np.unique(keys)) == num_keys == table.num_keys
    assert np.isin(np.arange(-FEW, 3 * MANY), keys).all()
    is_given = (keys < 0) | (keys >= 10**9) & (op == "given")
    values = np.where(is_given[:, None], given(keys)["values"], start_of(keys, DIM))
    np.testing.assert_array_equal(found["values"], values)


@pytest.mark.parametrize("op", ["given", "trained", "read"])
@pytest.mark.parametrize("storage", [HBM, HBM_DRAM, HBM_DRAM_SSDHASH], ids=lambda of: of.name)
def test_gpu_memory_that_runs_out_is_an_error(storage, op, tmp_path):
    # Given two tables with rows in all their tiers, of which each key has its own values
    tables = [
        storage.make_table(
            DIM, name=name, rows_in_memory=2 * MANY, path=str(tmp_path / name), slots=("slot",)
        )
        for name in ("first", "second")
    ]
    few = np.arange(FEW) - FEW
    for table in tables:
        table.insert(given(few))
        for step in range(3):
            train(table, np.arange(MANY) + MANY * step, step, at_once=MANY)
        assert_has_all(table, op)

    errors = []
    for turn, megabytes in enumerate(ROUNDS):
        # When rows are given, or keys trained or read, and little GPU memory is left
        calls = works(op, tables, turn)
        with memory_left(megabytes) as leave_more:
            for call in calls:
                try:
                    call()
                except RuntimeError as error:
                    errors.append(f"{megabytes} MB left: {error}")
            leave_more()

            # Then both tables have what they had, train known keys, and are saved
            for table in tables:
                np.testing.assert_array_equal(read(table, few, at_once=FEW), given(few)["values"])
                train(table, few, step=turn + 3, at_once=FEW)
                assert_has_all(table, op)

    # And errors say what is wanted and left; with memory, the same work is done
    print(*errors, sep="\n")
    assert all(" wants " in error and " left " in error for error in errors), errors
    assert errors or op == "read"
    for table, call in zip(tables, works(op, tables, len(ROUNDS))):
        call()
        keys = np.arange(MANY) + (len(ROUNDS) + 1) * 10**9
        assert (table.describe(keys)["tiers"] >= 0).all() == (op != "read")


def test_a_slot_without_memory_leaves_a_table_as_it_was():
    # Given two tables with a budget of bytes, and no GPU memory
    tables = [
        HBM.make_table(DIM, name=name, budget=core.Budget(max_bytes=64 << 20)) for name in "ab"
    ]
    for table in tables:
        train(table, np.arange(1000), at_once=1000)
    before = [table.budget_counts() for table in tables]

    # When they are asked for another slot
    with memory_left(0):
        for table in tables:
            with pytest.raises(RuntimeError, match="slot 'late': it wants .* max_bytes"):
                table.slot("late", initial=0.5)

    # Then they may have as many keys as before, and get it once there is memory
    assert [table.budget_counts() for table in tables] == before
    for table in tables:
        table.slot("late", initial=0.5)
        np.testing.assert_array_equal(read(table, np.arange(1000), "late", at_once=1000), 0.5)
        assert table.budget_counts()["max_keys"] < before[0]["max_keys"]


@pytest.mark.parametrize("megabytes", ROUNDS)
def test_keys_that_no_memory_is_left_to_erase_are_handed_out_once(megabytes):
    # Given two tables whose keys are old
    budget = core.Budget(max_keys=4 * MANY, hands_out="rows")
    tables = [HBM.make_table(DIM, name=name, budget=budget) for name in "ab"]
    for table in tables:
        train(table, np.arange(MANY), step=1, at_once=MANY)

    # When they are evicted with little memory, and again with more
    for left in (megabytes, 1024):
        with memory_left(left):
            for table in tables:
                with contextlib.suppress(RuntimeError):
                    table.evict({"steps_to_live": 2}, step=9)

    # Then each is handed out once, with its row
    for table in tables:
        evicted = table.take_evicted()
        order = np.argsort(evicted["keys"])
        np.testing.assert_array_equal(evicted["keys"][order], np.arange(MANY))
        np.testing.assert_array_equal(evicted["values"][order], start_of(np.arange(MANY), DIM))
        assert table.num_keys == table.budget_counts()["missed"] == 0
