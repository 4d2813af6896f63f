"""A trainer that publishes until it is killed, and what it has at each step.

The rows and variables at a step follow from the step's number (`content_at`), so that a reader of
a version knows what it should be. A trainer that starts goes on behind the newest version.
"""

import time
import warnings

import numpy as np
import tensorflow as tf
from support.programs.killed_replicas import end_with_parent

import group_embedding as ge
from group_embedding.serving.versions.deltas import Reader

NUM_KEYS, DIM = 2000, 8
WRITTEN_EVERY = 20  # steps: 100 keys in a step
ERASED_EVERY = 400  # steps: 5 keys in a step, half of WRITTEN_EVERY before they are written again


def written_at(keys, step):
    """The last step until `step` that writes each key; negative: none."""
    return step - (step - keys) % WRITTEN_EVERY


def erased_at(keys, step):
    """The last step until `step` that erases each key; negative: none."""
    block = keys // WRITTEN_EVERY % (ERASED_EVERY // WRITTEN_EVERY)
    in_block = (keys + WRITTEN_EVERY // 2) % WRITTEN_EVERY
    return step - (step - WRITTEN_EVERY * block - in_block) % ERASED_EVERY


def rows_at(keys, step):
    """(Whether each key has a row at a step, the rows: zeros where there is none)."""
    written = written_at(keys, step)
    has_row = (written >= 0) & (written > erased_at(keys, step))
    rows = keys[:, None] % 1009 + np.arange(DIM) / 8 + written[:, None]
    return has_row, np.where(has_row[:, None], rows, 0).astype(np.float32)


def content_at(step):
    """{key: bytes of its row} of the table, and the weights."""
    keys = np.arange(NUM_KEYS)
    has_row, rows = rows_at(keys, step)
    found = zip(keys[has_row].tolist(), (row.tobytes() for row in rows[has_row]))
    return dict(found), np.full([100, 100], step, np.float32)


class Model(tf.Module):
    """Starts with what a step left."""

    def __init__(self, step):
        super().__init__()
        self.table = ge.get_embedding_variable(
            "dies", embedding_dim=DIM, initializer=tf.zeros_initializer()
        )
        self.weights = tf.Variable(tf.fill([100, 100], float(step)))
        keys = np.arange(NUM_KEYS)
        has_row, rows = rows_at(keys, step)
        self.table.insert(keys[has_row], rows[has_row])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="keys")])
    def serve(self, keys):
        (rows,) = ge.group_embedding_lookup([self.table], [keys])
        return {"rows": rows, "weights": tf.identity(self.weights)}

    def train(self, step):
        keys = np.arange(NUM_KEYS)
        written = keys[written_at(keys, step) == step]
        self.table.insert(written, rows_at(written, step)[1])
        self.table.erase(keys[erased_at(keys, step) == step])
        self.weights.assign(tf.fill([100, 100], float(step)))


def train(url):
    """Trains and publishes until it is killed."""
    end_with_parent()
    last_step = newest_step(url)
    model = Model(last_step)
    with ge.serving.Publisher(model, url, every_seconds=0, base_every=20) as publisher:
        for step in range(last_step + 1, 10**9):
            model.train(step)
            publisher.after_step(step)


def train_through_failures(url, step_seconds):
    """Publishes as `train` does, a step each `step_seconds`; trains on while the target is away."""
    end_with_parent()
    warnings.simplefilter("ignore")  # of a target that is away
    last_step = until_it_answers(lambda: newest_step(url))
    model = Model(last_step)
    publisher = until_it_answers(
        lambda: ge.serving.Publisher(
            model, url, every_seconds=step_seconds, base_every=100, on_failure="keep"
        )
    )
    for step in range(last_step + 1, 10**9):
        model.train(step)
        publisher.after_step(step)
        time.sleep(step_seconds)


def newest_step(url):
    """The step of the newest version; -1: there is none."""
    reader = Reader(ge.serving.open_target(url))
    newest = max(reader.versions(), default=0)
    return reader.record(newest).step if newest else -1


def until_it_answers(function):
    while True:
        try:
            return function()
        except (OSError, ge.serving.TargetError):
            time.sleep(0.2)
