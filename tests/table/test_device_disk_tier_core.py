"""Tables in GPU memory, host memory and on disk: the tests of the disk tier, beside host tables."""

import types

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from table import test_disk_tier as suite
from table.device_tables import DeviceTable, core
from table.test_disk_tier import (  # noqa: F401
    test_a_batch_that_does_not_fit_leaves_the_table_usable,
    test_a_slot_that_comes_late_starts_anew_on_disk_too,
    test_a_small_memory_trains_to_the_same_bits,
    test_a_snapshot_is_of_one_instant_in_both_tiers,
    test_reading_prefetches_rows_into_memory_and_counts_nothing,
    test_which_rows_leave_memory_first,
)

pytestmark = on_gpu


class ThreeTiers(DeviceTable):
    """Few rows are in GPU memory; what is said of tiers counts both memories as one."""

    def __init__(self, **options):
        super().__init__(device_bytes=400, **options)

    def describe(self, keys):
        described = self.table.describe(keys)
        tiers = described["tiers"]
        return described | {"tiers": np.where(tiers > 0, tiers - 1, tiers)}


@pytest.fixture(autouse=True)
def tables_in_three_tiers(monkeypatch):
    def make(disk=None, **options):
        return core.HostTable(**options) if disk is None else ThreeTiers(disk=disk, **options)

    fake = types.SimpleNamespace(HostTable=make, DiskTier=core.DiskTier)
    monkeypatch.setattr(suite, "core", fake)
    monkeypatch.setattr(suite, "INFO_BYTES", 32 + 8)  # with what is kept of a row's use


@pytest.mark.parametrize("is_training", [True, False])
def test_what_was_located_since_a_batch_in_flight_began_stays_in_memory(is_training):
    table = suite.make_table(10)
    suite.train(table, np.arange(8), step=0)
    batch = table.begin_batch()
    rows = table.locate(np.arange(8), train=is_training)
    values = table.rows[rows].copy()

    suite.train(table, [100, 101], step=1)
    with pytest.raises(RuntimeError, match="table 'table'.*1 rows too many: it has 10 rows"):
        suite.train(table, [102], step=2)

    np.testing.assert_array_equal(table.rows[rows], values)
    assert (table.describe(np.arange(8))["tiers"] == 0).all()
    table.end_batch(batch)
    suite.train(table, np.arange(200, 210), step=3)
    assert table.num_keys == 20


def test_memories_without_sizes():
    with pytest.raises(RuntimeError, match="table 'user'.*expected the sizes of both memories"):
        core.DeviceTable(dim=1, disk=core.DiskTier(), name="user")


def test_readers_and_trainers_of_many_threads_agree(monkeypatch):
    """If a thread lags behind, rows that other threads located meanwhile stay in memory, and their
    next batches may not fit: such batches change nothing and are repeated."""

    def until_it_fits(*batch):
        while True:
            try:
                return locate_in_a_batch(*batch)
            except RuntimeError as error:
                assert "rows too many" in str(error)

    locate_in_a_batch = suite.locate_in_a_batch
    monkeypatch.setattr(suite, "locate_in_a_batch", until_it_fits)
    suite.test_readers_and_trainers_of_many_threads_agree()
