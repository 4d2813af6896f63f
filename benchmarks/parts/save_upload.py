"""How long training steps take while checkpoints are uploaded, and what an upload has to send.

Keyed tables are filled and trained step by step. In turns, steps are timed while nothing is saved
and while a checkpoint is uploaded, a full one or one of changes:

* step ms: a training step while nothing is saved (median);
* step ms, uploading: the same between the end of a save and that of its upload;
* upload s, MB, MB/s: of a checkpoint, from its save to its manifest.

    python benchmarks/bench_save.py upload URL [--rows 1000000] [--dim 16] [--tables 2] [--saves 5]

URL is a folder that need not exist, such as s3://bucket/bench; its checkpoints are removed.
"""

import os
import statistics
import tempfile
import threading
import time

import numpy as np
import tensorflow as tf
from report import machine

import group_embedding as ge
from group_embedding.files import remote_files

STEPS_ALONE = 20


def add_options(parser):
    parser.add_argument("url", help="where checkpoints are uploaded to")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each table")
    parser.add_argument("--tables", type=int, default=2)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4096, help="ids of each table in a step")
    parser.add_argument("--saves", type=int, default=5, help="of each kind")


class Training:
    """Tables with Adagrad's slots, trained by batches of random keys."""

    def __init__(self, args):
        self.tables = [
            ge.get_embedding_variable(f"table_{i}", args.dim) for i in range(args.tables)
        ]
        self.optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
        for table in self.tables:
            for begin in range(0, args.rows, 100_000):
                keys = np.arange(begin, min(begin + 100_000, args.rows), dtype=np.int64)
                table.insert(keys, np.ones([len(keys), args.dim], np.float32))
        self.checkpoint = tf.train.Checkpoint(tables=self.tables, optimizer=self.optimizer)
        random = np.random.default_rng(0)
        shape = [16, args.tables, args.batch]
        self.batches = tf.constant(random.integers(0, args.rows, shape, dtype=np.int64))
        self.number = 0
        for _ in range(3):
            self.step()

    def step(self):
        """Trains a step; returns its seconds."""
        begin = time.monotonic()
        self._step(self.batches[self.number % len(self.batches)])
        self.number += 1
        return time.monotonic() - begin

    @tf.function
    def _step(self, ids):
        with tf.GradientTape() as tape:
            rows = ge.group_embedding_lookup(self.tables, tf.unstack(ids, num=len(self.tables)))
            loss = tf.add_n([tf.reduce_sum(one**2) for one in rows])
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.tables), self.tables))


def upload(training, run, manager, changes):
    """Saves, and trains until the upload is complete: (seconds of steps, seconds, bytes)."""
    before = set(remote_files.files_below(run.url))
    path = ge.checkpoint.save_changes(manager) if changes else manager.save()
    begin, steps, name = time.monotonic(), [], os.path.basename(path)
    done = threading.Event()
    waiting = threading.Thread(target=lambda: (run.upload(path), done.set()))
    waiting.start()
    while not (done.is_set() and steps):
        steps.append(training.step())
    seconds = time.monotonic() - begin
    waiting.join()
    assert run.checkpoints()[-1] == name
    after = remote_files.files_below(run.url)
    return steps, seconds, sum(size for path, size in after.items() if path not in before)


def run(args):
    training = Training(args)
    results = {kind: {"alone": [], "during": [], "seconds": [], "bytes": []} for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        run = ge.checkpoint.RemoteFolder(args.url, folder, keep=2, progress=False)
        manager = tf.train.CheckpointManager(training.checkpoint, folder, max_to_keep=2)
        for _ in range(args.saves):
            for kind, found in results.items():
                found["alone"] += [training.step() for _ in range(STEPS_ALONE)]
                steps, seconds, num_bytes = upload(training, run, manager, kind == "changes")
                found["during"] += steps
                found["seconds"].append(seconds)
                found["bytes"].append(num_bytes)
    remote_files.remove(args.url)
    rows = [row_of(kind, found) for kind, found in results.items()]
    return {**machine(), "command": "bench_save upload", **vars(args)}, rows


KINDS = ("full", "changes")


def row_of(kind, found):
    alone, during, seconds, size = (statistics.median(found[name]) for name in found)
    return {
        "save": kind,
        "step ms": 1e3 * alone,
        "step ms, uploading": 1e3 * during,
        "ratio": during / alone,
        "upload s": seconds,
        "MB": size / 1e6,
        "MB/s": size / 1e6 / seconds,
    }
