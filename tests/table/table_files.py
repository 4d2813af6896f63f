"""Tables, what they hold, and their files, for the tests of both."""

import numpy as np
from support import core

DIM = 4
SLOTS = {"adagrad/accumulator": {}, "momentum/count": {"per_row": True, "initial": 2.0}}


def make_table(slots=SLOTS, **options):
    """A table and its slots, by name."""
    matrix = np.arange(8 * DIM, dtype=np.float32).reshape(8, DIM)
    table = core.HostTable(**{"dim": DIM, "matrix": matrix, "name": "user", **options})
    for name, slot in slots.items():
        table.slot(name, **slot)
    return table


def train(table, keys, step, rng, slots=SLOTS):
    """One step: keys are found, their rows and slots written."""
    batch = table.begin_batch()
    rows = np.unique(table.locate(np.asarray(keys), train=True, step=step))
    rows = rows[rows >= table.first_row]
    table.before_write(rows)
    table.rows[rows] = rng.normal(size=[len(rows), DIM])
    for name, options in slots.items():
        slot = table.slot(name, **options)
        slot[rows] = rng.normal(size=[len(rows), slot.shape[1]])
    table.end_batch(batch)


def random_keys(rng, count):
    return rng.integers(-(2**63), 2**63 - 1, size=count, dtype=np.int64)


def content(*tables):
    """{key: everything that is kept of it}, of all tables together."""
    found = {}
    for table in tables:
        snapshot = table.snapshot()
        rows = snapshot.read(0, snapshot.num_rows)
        arrays = [rows["counts"], rows["versions"], rows["values"], *rows["slots"]]
        for i, key in enumerate(rows["keys"].tolist()):
            assert key not in found
            found[key] = tuple(array[i].tobytes() for array in arrays)
        counted = snapshot.admission
        found.update(zip([("seen", k) for k in counted["keys"].tolist()], counted["counts"]))
        if counted["counters"]:
            found["counters"] = counted["counters"]
    return found


def save(table, path, changes_only=False, save_id=1, **options):
    """Writes a file; a full one begins the next changes."""
    snapshot = table.snapshot(changes_only)
    sums = core.write_table(
        snapshot, str(path), changes_only=changes_only, save_id=save_id, **options
    )
    snapshot.keep()
    return sums
