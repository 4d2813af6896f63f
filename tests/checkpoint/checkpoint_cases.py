"""Models with keyed tables, and what a checkpoint holds of them, for the tests of checkpoints."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files

v1 = tf.compat.v1
DIM = 4
NUM_STEPS = 10
OPTIONS = {}  # of all tables, unless a test says otherwise


def batches(seed=0, num_steps=NUM_STEPS):
    """[steps, samples, 2] keys: many come again, some are new in each step."""
    rng = np.random.default_rng(seed)
    known = rng.integers(-(2**63), 2**63 - 1, 40, dtype=np.int64)
    new = rng.integers(-(2**63), 2**63 - 1, [num_steps, 16, 2], dtype=np.int64)
    return np.where(rng.random(new.shape) < 0.8, rng.choice(known, new.shape), new)


class Model(NamedTuple):
    """A model in a graph of TensorFlow 1."""

    tables: list
    keys: Any
    loss: Any
    train: Any
    global_step: Any


def build(optimizer=None, **options):
    """Two tables and a dense variable, in the default graph."""
    global_step = v1.train.get_or_create_global_step()
    option = ge.EmbeddingVariableOption(**{**OPTIONS, **options})
    tables = [
        ge.get_embedding_variable(name, DIM, ev_option=option) for name in ("user", "deep/item")
    ]
    weights = v1.get_variable("weights", [DIM, 1], initializer=v1.ones_initializer())
    keys = v1.placeholder(tf.int64, [None, 2], name="keys")
    rows = ge.group_embedding_lookup(tables, [keys, keys])
    loss = tf.reduce_sum(tf.matmul(tf.reduce_sum(tf.add_n(rows), 1), weights) ** 2)
    optimizer = optimizer or v1.train.AdamOptimizer(0.01)
    train = ge.optimizers.wrap(optimizer).minimize(loss, global_step)
    return Model(tables, keys, loss, train, global_step)


def train(session, model, steps):
    for keys in steps:
        session.run(model.train, {model.keys: keys})


def content(prefix):
    """{table: {key: what is kept of it}}, and {name: value} of the dense variables."""
    tables = {table["table"]: _rows(table["files"]) for table in files.tables(prefix)}
    reader = files.reader(prefix)
    dense = {
        name: reader.get_tensor(name).tobytes()
        for name, dtype in reader.get_variable_to_dtype_map().items()
        if dtype != tf.string
    }
    return tables, dense


def _rows(saved):
    rows = {}
    for file in sorted(saved, key=lambda file: file["changes_only"]):
        table_file = files.table_file(file["path"])
        slots = [slot["name"] for slot in table_file.header["slots"]]
        for block in table_file:
            for key in block["erased"].tolist():
                rows.pop(key, None)
            for i, key in enumerate(block["keys"].tolist()):
                rows[key] = (
                    int(block["counts"][i]),
                    int(block["versions"][i]),
                    block["values"][i].tobytes(),
                    {name: values[i].tobytes() for name, values in zip(slots, block["slots"])},
                )
    return rows


def flip(whole, bit):
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
