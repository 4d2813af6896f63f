"""Models that tests publish, and what they are at an instant."""

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding.serving.versions.deltas import Reader

DIM = 4
NAMES = ("users", "items")


class TwoTables(tf.Module):
    """Two keyed tables, a table by row number that is large enough for changes by row, weights."""

    def __init__(self, prefix, **options):
        super().__init__()
        option = ge.EmbeddingVariableOption(**options)
        self.users, self.items = (
            ge.get_embedding_variable(f"{prefix}_{name}", embedding_dim=DIM, ev_option=option)
            for name in NAMES
        )
        self.pages = tf.Variable(tf.random.stateless_normal([1 << 14, 16], [1, 2]))
        self.weights = tf.Variable(tf.random.stateless_normal([2 * DIM + 16, 1], [3, 4]))
        self.offset = tf.Variable(0.0)

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64, name=n) for n in ("user", "item", "page")]
    )
    def serve(self, user, item, page):
        found = ge.group_embedding_lookup_sparse(
            [self.users, self.items, self.pages],
            [tf.RaggedTensor.from_row_lengths(i, tf.ones_like(i)) for i in (user, item, page)],
            "sum",
        )
        return {"score": tf.concat(found, 1) @ self.weights + self.offset}

    @property
    def tables(self):
        return {"users": self.users, "items": self.items}

    def change(self, random, num_rows=50):
        """Another step: rows are written, keys erased, weights changed."""
        for table in self.tables.values():
            keys = random.integers(0, 400, num_rows)
            table.insert(np.unique(keys), random.normal(size=[len(np.unique(keys)), DIM]))
            table.erase(random.integers(0, 400, 5))
        rows = random.choice(1 << 14, 20, replace=False)
        self.pages.scatter_nd_update(rows[:, None], random.normal(size=[20, 16]).astype(np.float32))
        self.weights.assign_add(random.normal(size=self.weights.shape).astype(np.float32))
        self.offset.assign_add(1.0)


def rows_of(table):
    """{key: the bytes of its row}."""
    found = table.export()
    return {k: v.tobytes() for k, v in zip(found.keys.numpy().tolist(), found.values.numpy())}


def content_of(model):
    """The expected content of a version of the model: tables and dense variables."""
    tables = {table.rows.name: rows_of(table) for table in model.tables.values()}
    dense = {name: getattr(model, name).numpy() for name in ("pages", "weights", "offset")}
    return tables, dense


def assert_same(content, expected):
    """A `deltas.Content` and what `content_of` gave are equal to the bit."""
    tables, dense = expected
    assert content.tables == tables
    for name, value in dense.items():
        found = content.variables[f"{name}/.ATTRIBUTES/VARIABLE_VALUE"]
        assert found.dtype == value.dtype and found.tobytes() == value.tobytes(), name


def reader_of(folder):
    return Reader(ge.serving.open_target(folder))
