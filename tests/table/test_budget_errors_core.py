"""Errors of tables with a budget: no place for a row, a disk that fails. The error says so, and all
other rows keep their values."""

import os
import time

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from table.device_tables import core
from table.steps import located, start_of, train
from table.storages import DRAM, HBM, HBM_DRAM, HBM_DRAM_SSDHASH, WITH_DISK
from table.test_device_budget_bytes_core import make_table
from table.test_device_budget_core import content

WIDE = 128  # of rows of which some ten thousand fill a file
MAX_KEYS = 40_000
NUM_NEW = 2500


def make_wide(storage, folder, name="table", num_shares=0):
    return storage.make_table(
        WIDE, name=name, rows_in_memory=8000, path=str(folder),
        budget=core.Budget(max_keys=MAX_KEYS, num_shares=num_shares),
    )  # fmt: skip


def keys_of(step):
    """500 of the step before, which are in memory, and new ones."""
    return np.arange(NUM_NEW * step - 500, NUM_NEW * step + NUM_NEW)


def break_files(folder):
    """Once RocksDB has written them, which it does beside the table."""

    def sizes():
        return {file: file.stat().st_size for file in folder.rglob("*.sst")}

    before = {}
    for _ in range(60):  # half seconds
        if (now := sizes()) and now == before:
            break
        before = now
        time.sleep(0.5)
    assert before, "RocksDB has written no file"
    for file in before:
        os.truncate(file, 100)


def train_together(tables, keys, step):
    """In one call."""
    core.locate_rows(
        [
            (table.table, core.DeviceArray(keys), core.DeviceArray(np.full(len(keys), -7)))
            for table in tables
        ],
        train=True,
        step=step,
    )


@pytest.mark.parametrize(
    "broken, num_shares",
    [pytest.param(*of, marks=on_gpu) for of in (([0], 0), ([1], 24), ([0, 2], 0))],
)
def test_a_disk_that_fails_leaves_the_other_tables_of_a_call_whole(broken, num_shares, tmp_path):
    # Given full tables, and their like in host memory
    storages = [HBM_DRAM_SSDHASH, HBM_DRAM_SSDHASH, HBM_DRAM_SSDHASH, HBM]
    tables = [
        make_wide(of, tmp_path / f"t{n}", f"t{n}", num_shares) for n, of in enumerate(storages)
    ]
    host = make_wide(DRAM, tmp_path, num_shares=num_shares)
    for step in range(20):
        train_together(tables, keys_of(step), step)
        train(host, keys_of(step), step, at_once=NUM_NEW + 500)
    for table in tables:
        assert content(table) == content(host)
    before = [tables[n].budget_counts() for n in broken]

    # When a call has new keys, for which some of them cannot read what their disks have
    for n in broken:
        break_files(tmp_path / f"t{n}")
    with pytest.raises(RuntimeError, match=f"table 't{broken[0]}', disk tier in.*truncated"):
        train_together(tables, keys_of(20), step=20)

    # Then the others have trained them, and go on
    others = [table for n, table in enumerate(tables) if n not in broken]
    train(host, keys_of(20), step=20, at_once=NUM_NEW + 500)
    for step in range(21, 30):
        for table in others:
            assert content(table) == content(host)
        train_together(others, keys_of(step), step)
        train(host, keys_of(step), step, at_once=NUM_NEW + 500)
    for table in others:
        assert table.budget_counts() == host.budget_counts()

    # And the tables whose disks failed have no new key, and train the known ones
    known, new = np.split(keys_of(20), [500])
    for n, counts in zip(broken, before):
        assert tables[n].budget_counts() == counts
        assert (tables[n].describe(new)["tiers"] < 0).all()
        for step in (30, 31):
            train_together([tables[n]], known, step)
        described = tables[n].describe(known)
        assert (described["versions"] == 31).all()
        assert (described["counts"] == 4).all()


@pytest.mark.parametrize("storage", WITH_DISK)
def test_a_table_whose_disk_fails_trains_what_is_in_memory(storage, tmp_path):
    # Given a full table
    table = make_wide(storage, tmp_path)
    for step in range(20):
        train(table, keys_of(step), step, at_once=NUM_NEW + 500)
    counts = table.budget_counts()

    # When its files are broken, Then new keys are refused each time, and known ones are trained
    break_files(tmp_path)
    for step in (20, 21, 22):
        with pytest.raises(RuntimeError, match="table 'table', disk tier in.*truncated"):
            train(table, keys_of(step), step, at_once=NUM_NEW + 500)
        known = keys_of(20)[:500]
        with located(table, known, train=True, step=step) as rows:
            np.testing.assert_array_equal(table.rows[rows], start_of(known, WIDE))
            assert (table.info(rows)["versions"] == step).all()
    assert table.budget_counts() == counts


@pytest.mark.parametrize("storage", [pytest.param(of, marks=on_gpu) for of in (HBM, HBM_DRAM)])
def test_given_rows_without_a_row_are_an_error(storage):
    # Given a full table with a budget of bytes, and a batch in flight that reads its rows
    table = make_table(storage, options={"slots": ["m"]})
    max_keys, dim = table.budget_counts()["max_keys"], table.rows.shape[1]
    old = np.arange(max_keys)
    train(table, old, step=0, at_once=max_keys // 8)
    initial = table.rows[: table.first_row].copy()
    batch = table.begin_batch()
    held = table.locate(old, batch=batch)

    # When rows are given until those of the keys that went, which it holds, are all that is left
    given = np.arange(max_keys // 25) + np.arange(1, 9)[:, None] * 2 * max_keys

    def insert(keys):
        values = np.repeat(keys % 1000 + 100, dim).reshape(-1, dim).astype(np.float32)
        versions = np.ones(len(keys), np.int64)
        table.insert({"keys": keys, "values": values, "counts": versions, "versions": versions})

    number = 0
    with pytest.raises(RuntimeError, match="table 'table' is full.*other batches hold rows"):
        for number in range(len(given)):
            insert(given[number])
    assert number > 0

    # Then those that it reads and the initial ones are what they were, and each key has its own
    np.testing.assert_array_equal(table.rows[held], start_of(old, dim))
    np.testing.assert_array_equal(table.rows[: table.first_row], initial)

    def expected(keys):
        of_given = np.repeat(keys % 1000 + 100, dim).reshape(-1, dim)
        return np.where((keys < max_keys)[:, None], start_of(keys, dim), of_given)

    def assert_each_has_its_own():
        snapshot = table.snapshot()
        read = snapshot.read(0, snapshot.num_rows)
        np.testing.assert_array_equal(read["values"], expected(read["keys"]))
        return set(read["keys"].tolist())

    there = assert_each_has_its_own()
    assert len(there) == table.num_keys <= max_keys
    assert set(given[:number].ravel().tolist()) <= there
    assert 0 < len(there & set(given[number].tolist())) < len(given[number])

    # And once the batch has ended all rows find one
    table.end_batch(batch)
    for keys in given[number:]:
        insert(keys)
    assert set(given[number:].ravel().tolist()) <= assert_each_has_its_own()
