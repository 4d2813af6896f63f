"""Checkpoints of several ranks at a URL: one upload has the rows of all, and any number of ranks
goes on from it."""

import os

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange

pytest.importorskip("fsspec")
KEYS = np.arange(60, dtype=np.int64) * 7919


def train(url, folder, num_steps):
    """Trains from the newest checkpoint on; (steps before, {key: row} of this rank)."""
    ranks = exchange.current()
    table = ge.get_embedding_variable("user", 3, initializer=tf.ones_initializer())
    step = tf.Variable(0)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)))
    checkpoint = tf.train.Checkpoint(table=table, step=step)
    with ge.checkpoint.RemoteFolder(url, folder, progress=False) as run:
        newest = tf.train.latest_checkpoint(run.folder)
        if newest:
            checkpoint.restore(newest)
        before = int(step.numpy())
        # Ranks other than the first write a path of their own, from which nothing is restored.
        own = run.folder if ranks.rank == 0 else os.path.join(run.folder, f"of_{ranks.rank}")
        manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=2)
        for _ in range(num_steps):
            with tf.GradientTape() as tape:
                ids = KEYS[ranks.rank :: ranks.num_ranks]
                (rows,) = ge.group_embedding_lookup([table], [ids])
                loss = tf.reduce_sum(rows**2) * ranks.num_ranks
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])
            step.assign_add(1)
        manager.save()
    found = table.export()
    return before, dict(zip(found.keys.numpy().tolist(), found.values.numpy().tolist()))


def train_on_rank(environment, *arguments):
    os.environ.update(environment)  # by which clients find the server, which may be younger
    ge.enable_distributed_strategy()
    return train(*arguments)


def test_two_ranks_go_on_where_two_ended(one_host, two_ranks, s3_server, s3_folder, tmp_path):
    # Given a run of two ranks, kept at a URL
    first = two_ranks.run(
        train_on_rank, s3_server["environment"], s3_folder, str(tmp_path / "a"), 2, timeout=120
    )
    rows = {**first[0][1], **first[1][1]}
    assert [before for before, _ in first] == [0, 0]
    assert sorted(rows) == KEYS.tolist()

    # When two ranks and then one, on other machines, go on
    second = two_ranks.run(
        train_on_rank, s3_server["environment"], s3_folder, str(tmp_path / "b"), 0, timeout=120
    )
    before, alone = train(s3_folder, str(tmp_path / "c"), 0)

    # Then each has the rows, to the bit, and the step
    assert [steps for steps, _ in second] == [2, 2] and before == 2
    assert [own for _, own in second] == [own for _, own in first]
    assert alone == rows
