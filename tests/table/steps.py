"""Steps of tests on a table of any storage. Rows are used only within the batch that located them,
as they may move after it."""

import contextlib

import numpy as np
import pytest

core = pytest.importorskip("support.core")

MIN, MAX = -(2**63), 2**63 - 1
EXTREMES = np.array([0, 1, -1, MIN, MAX, MIN + 1, MAX - 1], np.int64)
AT_ONCE = 8  # keys in a batch, unless said otherwise
# A filter that admits no key of these tests.
BLOOM = {"admission": "bloom", "min_count": 100, "num_counters": 5001, "num_hashes": 3}


def start_of(keys, dim=4):
    """The rows of a matrix that keys start as."""
    return np.arange(8 * dim, dtype=np.float32).reshape(8, dim)[
        np.asarray(keys, np.int64).astype(np.uint64) % np.uint64(8)
    ]


def batches_of(keys, at_once=AT_ONCE):
    return [keys[begin : begin + at_once] for begin in range(0, len(keys), at_once)]


@contextlib.contextmanager
def located(table, keys, **access):
    """Row numbers of keys, as long as the batch is in flight."""
    batch = table.begin_batch()
    try:
        yield table.locate(keys, batch=batch, **access)
    finally:
        table.end_batch(batch)


def train(table, keys, step=-1, at_once=AT_ONCE):
    """Counts keys, batch by batch, and leaves their values."""
    for part in batches_of(keys, at_once):
        with located(table, part, train=True, step=step):
            pass


def read(table, keys, slot=None, at_once=AT_ONCE):
    """The values that keys read, batch by batch; or their values in a slot."""
    found = []
    for part in batches_of(keys, at_once):
        with located(table, part) as rows:
            found.append((table.rows if slot is None else table.slot(slot))[rows])
    return np.concatenate(found)


def write(table, keys, values, slot=None):
    """Writes what an update would: the rows, or a slot, of those keys that have a row; a number for
    each key, or one for all."""
    values = np.broadcast_to(values, len(keys))
    for part, numbers in zip(batches_of(keys), batches_of(values)):
        with located(table, part) as rows:
            has_row = rows >= table.first_row
            table.before_write(rows[has_row])
            array = table.rows if slot is None else table.slot(slot)
            array[rows[has_row]] = numbers[has_row, None]


def has_row(table, keys):
    """In whatever tier."""
    return table.describe(keys)["tiers"] >= 0


def crowd_out(table):
    """Trains other keys and erases them. A table with a disk, a memory of 16 rows and the strategy
    'least_recent' then has all earlier keys on disk."""
    others = np.arange(24) + 2**50
    train(table, others)
    table.erase(others)


def content_of_snapshot(snapshot, rows_at_once=100):
    """{key: (values, count)} of a snapshot."""
    found = {}
    for begin in range(0, snapshot.num_rows, rows_at_once):
        part = snapshot.read(begin, begin + rows_at_once)
        for key, count, values in zip(part["keys"], part["counts"], part["values"]):
            assert key not in found
            found[int(key)] = (values.tolist(), int(count))
    return found


def counted_of(snapshot):
    """{key: count} of what was counted of keys without a row."""
    counted = snapshot.admission
    return dict(zip(counted["keys"].tolist(), counted["counts"].tolist()))


def restore(table, paths, **ranks):
    core.restore_table(getattr(table, "table", table), paths, **ranks)
