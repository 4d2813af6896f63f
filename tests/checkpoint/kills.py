"""A process that is killed at random moments while it saves, over and over.

Each child restores the newest checkpoint, checks it to the last bit, and saves further steps until
it is killed. What a step holds follows from its number, in the table and in a dense variable.

Run as: python kills.py FOLDER NUM_KILLS SEED. The parent imports TensorFlow and runs none of it, so
that it can fork.
"""

import os
import random
import signal
import sys
import time

import numpy as np
import tensorflow as tf

import group_embedding as ge

v1 = tf.compat.v1
v1.disable_eager_execution()
NUM_KEYS, DIM = 100_000, 8
KEYS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, NUM_KEYS, dtype=np.int64)


def rows_of_step(step):
    return (KEYS[:, None] % 1009 + np.arange(DIM) + step).astype(np.float32)


def build():
    tables = [ge.get_embedding_variable(name, DIM) for name in ("user", "item")]
    step = v1.get_variable("step", [], tf.int64, v1.zeros_initializer())
    rows = v1.placeholder(tf.float32, [NUM_KEYS, DIM])
    new_step = v1.placeholder(tf.int64, [])
    change = [table.insert(KEYS, rows) for table in tables]
    change.append(step.assign(new_step))
    return tables, step, rows, new_step, change


def child(folder, says):
    """Tells where a save begins and where it has ended."""
    tables, step, rows, new_step, change = build()
    saver = v1.train.Saver(max_to_keep=2)
    exported = [table.export() for table in tables]
    # Two threads: a kill finds one writing while the other reads.
    config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    with v1.Session(config=config) as session:
        newest = tf.train.latest_checkpoint(folder)
        at = 0
        if newest:
            saver.restore(session, newest)
            saver.recover_last_checkpoints(
                tf.train.get_checkpoint_state(folder).all_model_checkpoint_paths
            )
            at = int(session.run(step))
            for table in session.run(exported):
                order, expected = np.argsort(table[0]), np.argsort(KEYS)
                assert np.array_equal(table[0][order], KEYS[expected]), f"keys of step {at}"
                assert np.array_equal(table[1][order], rows_of_step(at)[expected]), f"step {at}"
            assert newest.endswith(f"-{at}")
        else:
            session.run(v1.global_variables_initializer())
        while True:
            at += 1
            session.run(change, {rows: rows_of_step(at), new_step: at})
            os.write(says, b"[")
            saver.save(session, f"{folder}/model", global_step=at, write_meta_graph=False)
            assert not left_in(folder), f"left by the process before: {left_in(folder)}"
            os.write(says, b"]")


def left_in(folder):
    """Files of tables that belong to no checkpoint."""
    names = os.listdir(folder)
    complete = {name[: -len(".index")] for name in names if name.endswith(".index")}
    # Between TensorFlow's file and the index, a save that was killed looks like a copy in progress.
    complete |= {name[: -len(".data-00000-of-00001")] for name in names if "data-0" in name}
    ours = [name for name in names if ".data-r" in name]
    return [name for name in ours if name.endswith(".tmp") or name[:-20] not in complete]


def main(folder, num_kills, seed):
    random.seed(seed)
    latest, tries, num_within = set(), 0, 0
    while tries < num_kills:
        reading, says = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            try:
                child(folder, says)
            except BaseException as error:
                print(f"kill {tries} of seed {seed}: {error!r}", flush=True)
            os._exit(1)
        os.close(says)
        # Not within the first save, most of which is what a Session does once. The second says how
        # long one takes, on this machine and now.
        said, times = b"", []
        while said != b"[][][":
            said += os.read(reading, 1) or sys.exit(f"child {pid} ended, and said {said}")
            times.append(time.monotonic())
        time.sleep(random.uniform(0, times[3] - times[2]))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while some := os.read(reading, 64):
            said += some
        os.close(reading)
        num_within += said.endswith(b"[")
        latest.add(tf.train.latest_checkpoint(folder))
        tries += 1
    print(f"{tries} kills, {num_within} within a save, {len(latest)} newest checkpoints")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
