"""A process that is killed at random moments while it uploads checkpoints, over and over.

Each child fetches the newest checkpoint, every second one as another machine would, checks it to
the last bit, and saves and uploads further steps until it is killed: full saves and saves of
changes in turn. What a step holds follows from its number, in three tables and in a dense variable.

Run as: python remote_kills.py URL FOLDER NUM_KILLS SEED. The parent imports TensorFlow and runs
none of it, so that it can fork.
"""

import os
import random
import re
import signal
import sys
import time

import numpy as np
import tensorflow as tf

import group_embedding as ge

NUM_KEYS, NUM_CHANGED, DIM = 20_000, 100, 8
KEYS = np.sort(np.random.default_rng(0).integers(0, 2**63 - 1, NUM_KEYS, dtype=np.int64))
NAMES = ("user", "item", "word")


def rows_of_step(step):
    """All rows at a step: even steps change the first ones of the step before."""
    full = step - 1 + step % 2
    rows = (KEYS[:, None] % 1009 + np.arange(DIM) + full).astype(np.float32)
    rows[:NUM_CHANGED] += step - full
    return rows


def child(url, folder, at_least, says):
    """Tells where an upload begins and where it has ended."""
    tables = [ge.get_embedding_variable(name, DIM) for name in NAMES]
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(step=step, **dict(zip(NAMES, tables)))
    with ge.checkpoint.RemoteFolder(url, folder, keep=2, progress=False) as run:
        manager = tf.train.CheckpointManager(checkpoint, run.folder, max_to_keep=2)
        checkpoint.restore(manager.latest_checkpoint)
        at = int(step.numpy())
        assert at >= at_least, f"step {at} was fetched, but {at_least} had been uploaded"
        for i, table in enumerate(tables if at else ()):
            keys, rows = (part.numpy() for part in table.export()[:2])
            assert np.array_equal(keys, KEYS), f"keys of step {at}"
            assert np.array_equal(rows, rows_of_step(at) + i), f"rows of step {at}"
        os.write(says, b"r")
        while True:
            at += 1
            changed = slice(None) if at % 2 else slice(NUM_CHANGED)
            for i, table in enumerate(tables):
                table.insert(KEYS[changed], rows_of_step(at)[changed] + i)
            step.assign(at)
            os.write(says, b"[")
            save = manager.save if at % 2 else lambda: ge.checkpoint.save_changes(manager)
            run.upload(save())
            os.write(says, f"{at}]".encode())


def main(url, folder, num_kills, seed):
    random.seed(seed)
    at_least, num_within = 0, 0
    for life in range(num_kills + 1):
        reading, says = os.pipe()
        local = os.path.join(folder, str(life if life % 2 else 0))
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            try:
                child(url, local, at_least, says)
            except BaseException as error:
                print(f"kill {life} of seed {seed}: {error!r}", flush=True)
            os._exit(1)
        os.close(says)
        said, begin = b"", None
        wanted = b"r" if life == num_kills else b"]"  # the last one only checks
        while wanted not in said:
            said += os.read(reading, 16) or sys.exit(f"child {pid} ended, and said {said}")
            begin = begin or (time.monotonic() if b"[" in said else None)
        if life < num_kills:
            time.sleep(random.uniform(0, 1.5 * (time.monotonic() - begin)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while some := os.read(reading, 64):
            said += some
        os.close(reading)
        num_within += said.endswith(b"[")
        at_least = max([at_least, *map(int, re.findall(rb"(\d+)\]", said))])
    print(f"{num_kills} kills, {num_within} within an upload, step {at_least}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
