"""core.DeviceTable with the face of core.HostTable, so that one suite tests both."""

import numpy as np
import pytest

core = pytest.importorskip("support.core")


class Rows:
    """Rows of a table in GPU memory: reading and writing copy all of them."""

    def __init__(self, table, slot):
        self.table, self.slot = table, slot
        self.shape = table.numpy(slot).shape

    def __getitem__(self, rows):
        return self.table.numpy(self.slot)[rows]

    def __setitem__(self, rows, values):
        copy = self.table.numpy(self.slot)
        copy[rows] = values
        self.table.assign(copy, self.slot)


class DeviceTable:
    def __init__(self, num_threads=1, **options):
        self.table = core.DeviceTable(**options)

    def locate(self, keys, **access):
        keys = core.DeviceArray(np.ascontiguousarray(keys, np.int64))
        rows = core.DeviceArray(np.full(len(keys.numpy()), -7, np.int64))
        self.table.locate(keys, rows, **access)
        return rows.numpy()

    def bring(self, keys):
        bring([(self, keys)])

    @property
    def rows(self):
        return Rows(self.table, None)

    def slot(self, name, **options):
        self.table.slot(name, **options)
        return Rows(self.table, name)

    def __getattr__(self, name):
        return getattr(self.table, name)


def bring(requests):
    """core.prefetch_rows of (DeviceTable, keys)."""
    arrays = [
        (t.table, core.DeviceArray(np.ascontiguousarray(keys, np.int64))) for t, keys in requests
    ]
    core.prefetch_rows(arrays)
