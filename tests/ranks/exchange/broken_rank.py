"""A rank that trains until it is disturbed: a program of its own for each rank.

$ horovodrun -np 3 python broken_rank.py FOLDER [elastic | by_row | on_gpu]

`by_row`: the table is found by row number, and on a GPU if there is one. `on_gpu`: it is found by
key, in 64 KB of a GPU.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding.ops.route_ids import key_owners
from group_embedding.ranks.sharding.make_sharded_table import make_table

FOLDER = Path(sys.argv[1])
NUM_STEPS, SAVE_STEPS = 60, 5
TIMEOUT = 5.0


def train():
    """Sums what it looks up: a row's value is minus a hundredth of how often it was looked up."""
    exchange = ge.exchange.current()
    table = _table()
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.01)))
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(table=table, step=step)
    own = str(FOLDER / "saved") if exchange.rank == 0 else str(FOLDER / f"scratch_{exchange.rank}")

    @tf.function(reduce_retracing=True)
    def train_step(ids):
        with tf.GradientTape() as tape:
            (rows,) = ge.group_embedding_lookup([table], [ids])
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    newest = tf.train.latest_checkpoint(FOLDER / "saved")
    if newest:
        checkpoint.restore(newest)
    (FOLDER / f"began_{exchange.num_ranks}_{exchange.rank}").write_text(
        f"{os.getpid()} {int(step)}"
    )
    while int(step) < NUM_STEPS or (FOLDER / "endless").exists():
        if (FOLDER / f"raise_{exchange.rank}").exists():
            raise ValueError("no such feature")
        fills = (FOLDER / "fill").exists()
        train_step(_keys_of_one_rank() if fills else tf.range(12, dtype=tf.int64))
        step.assign_add(1)
        if int(step) % SAVE_STEPS == 0:
            checkpoint.save(f"{own}/model")
    keys, values, *_ = table.export()
    np.savez(FOLDER / f"end_{exchange.rank}", keys=keys, values=values, step=step.numpy())
    return exchange.num_ranks


def _keys_of_one_rank():
    """More keys than rank 1's table can hold, all owned by rank 1."""
    keys = tf.range(20_000, dtype=tf.int64)
    return tf.boolean_mask(keys, key_owners(keys, ge.exchange.current().num_ranks) == 1)


def _table():
    if sys.argv[2:] == ["on_gpu"]:
        storage = ge.StorageOption(ge.StorageType.HBM, storage_size=[1 << 16])
        option = ge.EmbeddingVariableOption(storage_option=storage)
        return ge.get_embedding_variable("keys", 2, ev_option=option)
    if sys.argv[2:] != ["by_row"]:
        return ge.get_embedding_variable("keys", 2, initializer=tf.zeros_initializer())
    return make_table(
        (12, 2), tf.zeros_initializer(), lambda shape, initializer: tf.Variable(initializer(shape))
    )


if __name__ == "__main__":
    if sys.argv[2:] == ["elastic"]:
        print("trained on", ge.run_elastic(train, timeout_seconds=TIMEOUT), "ranks")
    else:
        ge.enable_distributed_strategy(timeout_seconds=TIMEOUT)
        train()
