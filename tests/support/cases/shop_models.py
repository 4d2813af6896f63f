"""Models of the serving tests: tables and dense variables, and what they answer."""

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding.variables import EmbeddingVariable

USERS = np.array([1, 5, -(2**40), 77])
NEW_USER = 123456


def table(name, dim, first=1.0, matrix_rows=2, **option):
    """A keyed table whose new keys start as rows of a matrix of `first`."""
    option = ge.EmbeddingVariableOption(
        init_option=ge.InitializerOption(default_value_dim=matrix_rows), **option
    )
    start = tf.constant_initializer(first)
    return EmbeddingVariable(name, dim, initializer=start, ev_option=option)


class Shop(tf.Module):
    """Two keyed tables, a table by row number, and two dense variables; two outputs."""

    def __init__(self):
        super().__init__()
        draw = np.random.default_rng(7)
        self.user = table("user", 8)
        self.brand = table("brand", 4, first=2.0)
        self.item = tf.Variable(draw.normal(size=[50, 8]).astype(np.float32), name="item")
        self.weight = tf.Variable(draw.normal(size=[20, 1]).astype(np.float32), name="weight")
        self.bias = tf.Variable(0.5, name="bias")
        self.user.insert(USERS, draw.normal(size=[4, 8]).astype(np.float32))
        self.brand.insert(np.arange(30), draw.normal(size=[30, 4]).astype(np.float32))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, name="user"),
            tf.TensorSpec([None, 3], tf.int64, name="brands"),
            tf.TensorSpec([None, 2], tf.int64, name="items"),
        ]
    )
    def serve(self, user, brands, items):
        rows = ge.group_embedding_lookup_sparse(
            [self.user, self.brand, self.item],
            [
                tf.RaggedTensor.from_tensor(user[:, None]),
                tf.RaggedTensor.from_tensor(brands),
                tf.RaggedTensor.from_tensor(items),
            ],
            ["sum", "mean", "sum"],
            concat=True,
        )
        return {"score": tf.nn.sigmoid(rows @ self.weight + self.bias), "rows": rows}


def change(model, seed):
    """Trains as between two publishes: rows, new keys, erased keys, variables."""
    draw = np.random.default_rng(seed)
    users = np.array([USERS[seed % 4], NEW_USER + seed, NEW_USER])
    model.user.insert(users, draw.normal(size=[3, 8]).astype(np.float32))
    model.brand.insert(np.arange(5, 35), draw.normal(size=[30, 4]).astype(np.float32))
    model.brand.erase(np.array([seed, 31]))
    model.item.scatter_nd_update(
        [[seed % 50], [49 - seed % 50]], draw.normal(size=[2, 8]).astype(np.float32)
    )
    model.weight.assign(draw.normal(size=[20, 1]).astype(np.float32))


class Versions(tf.Module):
    """Every row and the dense variable are the version."""

    KEYS = np.arange(64)

    def __init__(self):
        super().__init__()
        self.first = table("first", 4)
        self.second = table("second", 12)
        self.third = tf.Variable(tf.zeros([64, 4]), name="third")
        self.dense = tf.Variable(0.0, name="dense")
        self.set(1)

    def set(self, version):
        self.first.insert(self.KEYS, np.full([64, 4], version, np.float32))
        self.second.insert(self.KEYS, np.full([64, 12], version, np.float32))
        self.third.assign(tf.fill([64, 4], float(version)))
        self.dense.assign(float(version))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="key")])
    def serve(self, key):
        tables = [self.first, self.second, self.third]
        rows = ge.group_embedding_lookup(tables, [key] * 3)
        return {"rows": tf.concat(rows, -1), "dense": self.dense[None]}


def request(count=6, seed=1):
    """Ids of `count` samples, among them users and brands that were never trained."""
    draw = np.random.default_rng(seed)
    return {
        "user": draw.choice([*USERS, NEW_USER, -9], size=count),
        "brands": draw.integers(0, 40, size=[count, 3]),
        "items": draw.integers(0, 50, size=[count, 2]),
    }


def export(module, folder):
    tf.saved_model.save(module, str(folder), signatures=module.serve)
    return str(folder)


def answers(module, inputs):
    """Returns the answer of the trainer's own model."""
    found = module.serve(**{name: tf.constant(ids) for name, ids in inputs.items()})
    return {name: value.numpy() for name, value in found.items()}


def version_folder(target, version):
    return target / "versions" / f"{version:020}"


def assert_serves(session, model, expected_version):
    for seed in range(3):
        found = session.predict(request(20, seed))
        expected = answers(model, request(20, seed))
        assert found.version == expected_version
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
