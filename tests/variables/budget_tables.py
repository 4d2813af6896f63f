"""Tables with a budget that tests of several files train, in each combination of tiers."""

import pytest
import tensorflow as tf
from support.session.folders import make_folder

import group_embedding as ge

_FOLDER = make_folder()  # which outlives the tables of a test, unlike its own
DIM = 4
IN_TIERS = [
    pytest.param(("dram",), id="dram"),
    pytest.param(("dram", "disk"), id="dram+disk"),
    pytest.param(("hbm",), id="hbm", marks=pytest.mark.gpu),
    pytest.param(("hbm", "dram"), id="hbm+dram", marks=pytest.mark.gpu),
    pytest.param(("hbm", "dram", "disk"), id="hbm+dram+disk", marks=pytest.mark.gpu),
]
WITH_DISK = [param for param in IN_TIERS if "disk" in param.values[0]]
WITHOUT_DISK = [param for param in IN_TIERS if param not in WITH_DISK]


def make(name="user", tiers=("dram",), **options):
    """With a tier below the first, some rows are in that: on a GPU all but 40."""
    row_bytes = 72 + (4 if "evict_after_minutes" in options else 0)  # on a GPU
    if len(tiers) == 3:
        tier_bytes = [42 * row_bytes, 12 * row_bytes]
    elif len(tiers) == 2:
        tier_bytes = [100 * 96 if "disk" in tiers else 42 * row_bytes]
    if len(tiers) > 1:
        options = {"tier_bytes": tier_bytes, **options}
    if "disk" in tiers:
        options.update(disk_folder=_FOLDER)
    return ge.keyed_table(
        name, DIM, initializer=tf.ones_initializer(), num_initial_rows=1, tiers=tiers, **options
    )


def trainer(table, optimizer=None):
    """A function that trains keys, and returns what they read. Without an optimizer: by Adagrad."""
    optimizer = optimizer or ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.5))

    def train(keys):
        with tf.GradientTape() as tape:
            (rows,) = ge.lookup([table], [tf.constant(keys, tf.int64)])
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return rows.numpy()

    train.optimizer = optimizer
    return train


def found_in(table):
    """{key: (count, version)} of the keys that have a row."""
    found = table.export()
    return {
        int(key): (int(count), int(version))
        for key, count, version in zip(
            found.keys.numpy(), found.freqs.numpy(), found.versions.numpy()
        )
    }
