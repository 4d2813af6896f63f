"""The models of bench_dlrm.py: their tables, their ids, and their layers as plain variables.

`Dlrm` has 26 tables of the same size, one id of each in a sample, and dot products. `Dcnv2` has
MLPerf's tables, of 3 to 40 million rows (here capped) and 1 to 100 ids a sample, and three crosses.
Both have a bottom MLP 13-512-256-128 and a top MLP 1024-1024-512-256-1.
"""

import numpy as np
import tensorflow as tf
from tensorflow_ranks import make_spread_table
from workloads import MLPERF_HOTNESS, MLPERF_ROWS

import group_embedding as ge

NUM_FEATURES, NUM_DENSE, DIM = 26, 13, 128
NUM_VECTORS = 32  # that a Dlrm's dot products are of: features, dense inputs, and zeros
NUM_CROSSES, CROSS_RANK = 3, 512
TOP = [1024, 1024, 512, 256, 1]


class Model(tf.Module):
    """Tables and layers as plain variables, so that the step has nothing but the model in it.

    Variables have 32 bits. What layers are given, and their kernels, are cast to `precision`."""

    def __init__(self, tables, precision):
        super().__init__()
        self.tables, self.precision = tables, precision
        self.bottom, self.top = _mlp([NUM_DENSE, 512, 256, DIM]), self._make_top()
        self._compute_bottom = tf.function(self._bottom_of, jit_compile=True)
        self._compute_top = tf.function(self._top_of, jit_compile=True)

    @property
    def variables_(self):
        return self.tables + [v for layer in self.bottom + self.top for v in layer]

    def embed(self, ids):
        return ge.group_embedding_lookup_sparse(self.tables, ids, "sum", concat=True)

    def route(self, ids):
        return ge.route_ids(self.tables, ids, "sum")

    def __call__(self, dense, ids):
        return self._compute_top(self._compute_bottom(dense), self.embed(ids))

    def uncompiled(self, dense, ids):
        """Computes the logits as `__call__` does, for a step that is compiled as a whole."""
        return self._top_of(self._bottom_of(dense), self.embed(ids))

    def _bottom_of(self, dense):
        return _run(self.bottom, tf.cast(dense, self.precision), last=tf.nn.relu)

    def _top_of(self, bottom, looked_up):
        vectors = tf.concat([bottom, tf.cast(looked_up, self.precision)], 1)
        return tf.cast(self._logits_of(bottom, vectors), tf.float32)


class Dlrm(Model):
    """The dot products of all pairs of vectors."""

    HOTNESS, MOST_ROWS = [1] * NUM_FEATURES, 1_000_000

    @staticmethod
    def rows_of_tables(most):
        return [most] * NUM_FEATURES

    def _make_top(self):
        return _mlp([NUM_VECTORS**2 + DIM, *TOP])

    def _logits_of(self, bottom, vectors):
        vectors = tf.pad(vectors, [[0, 0], [0, NUM_VECTORS * DIM - vectors.shape[1]]])
        vectors = tf.reshape(vectors, [-1, NUM_VECTORS, DIM])
        dots = tf.matmul(vectors, vectors, transpose_b=True)
        flat = tf.reshape(dots, [-1, NUM_VECTORS**2])
        return _run(self.top, tf.concat([bottom, flat], 1), last=tf.identity)


class Dcnv2(Model):
    """Crosses of all vectors, each `x = x0 * (x V W + b) + x`, before the top MLP."""

    HOTNESS, MOST_ROWS = MLPERF_HOTNESS, 4_000_000

    @staticmethod
    def rows_of_tables(most):
        return [min(rows, most) for rows in MLPERF_ROWS]

    def _make_top(self):
        width = (NUM_FEATURES + 1) * DIM
        self.crosses = [
            (_kernel(width, CROSS_RANK), _kernel(CROSS_RANK, width), tf.Variable(tf.zeros([width])))
            for _ in range(NUM_CROSSES)
        ]
        return _mlp([width, *TOP])

    @property
    def variables_(self):
        return super().variables_ + [v for cross in self.crosses for v in cross]

    def _logits_of(self, bottom, vectors):
        del bottom  # it is among the vectors
        x = vectors
        for cross in self.crosses:
            narrow, wide, bias = (tf.cast(v, self.precision) for v in cross)
            x = vectors * tf.nn.bias_add(tf.matmul(tf.matmul(x, narrow), wide), bias) + x
        return _run(self.top, x, last=tf.identity)


MODELS = {"dlrm": Dlrm, "dcnv2": Dcnv2}


def make_tables(rows_of_tables, keyed):
    """A table for each number of rows, spread over the ranks: variables, or tables of keys."""
    names = [f"table_{t}" for t in range(len(rows_of_tables))]
    if keyed:
        return [_keyed_table(name) for name in names]
    return [make_spread_table(rows, DIM, name) for rows, name in zip(rows_of_tables, names)]


def draw_ids(generator, rows_of_tables, hotness, batch, keyed):
    """A SparseTensor of uniform ids for each table, of which a sample has as many as `hotness`
    says."""
    ids = []
    for rows, count in zip(rows_of_tables, hotness):
        drawn = generator.integers(0, rows, batch * count)
        places = np.stack(np.divmod(np.arange(batch * count), count), 1)
        ids.append(
            tf.SparseTensor(
                tf.identity(tf.constant(places)),
                tf.identity(tf.constant(keys_of(drawn) if keyed else drawn)),
                tf.constant([batch, count], tf.int64),
            )
        )
    return ids


def keys_of(ids):
    """A key for each id, anywhere in 64 bits, and no two the same."""
    return (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def insert_all(tables, rows_of_tables):
    """Gives the keys of all ids of each table rows in it; over ranks, on each key's owner."""
    values = np.random.default_rng(0).uniform(-0.01, 0.01, (1 << 16, DIM)).astype(np.float32)
    for table, rows in zip(tables, rows_of_tables):
        for begin in range(0, rows, len(values)):
            keys = keys_of(np.arange(begin, min(begin + len(values), rows)))
            table.insert(keys, values[: len(keys)])


def _keyed_table(name):
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    storage = ge.StorageOption(ge.StorageType.HBM if on_gpu else ge.StorageType.DRAM)
    return ge.get_embedding_variable(
        name,
        DIM,
        initializer=tf.random_uniform_initializer(-0.01, 0.01),
        ev_option=ge.EmbeddingVariableOption(storage_option=storage),
    )


def _kernel(inputs, outputs):
    return tf.Variable(tf.random.normal([inputs, outputs], stddev=(2 / inputs) ** 0.5))


def _mlp(sizes):
    return [
        (_kernel(inputs, outputs), tf.Variable(tf.zeros([outputs])))
        for inputs, outputs in zip(sizes, sizes[1:])
    ]


def _run(layers, x, last):
    for i, (kernel, bias) in enumerate(layers):
        x = tf.nn.bias_add(tf.matmul(x, tf.cast(kernel, x.dtype)), tf.cast(bias, x.dtype))
        x = tf.nn.relu(x) if i < len(layers) - 1 else last(x)
    return x
