"""The server on libge_serving: what it answers is what the trainer computes, version by version."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.servers.server_clients import Client, http, wait_for

import group_embedding as ge
from group_embedding.serving import Publisher, server

KEYS = {"user": [7, 2**40, -3, 99], "item": [5, 5, 123456, 1]}
POLL = ("--poll-seconds", "0.1")


class Model(tf.Module):
    """Two keyed tables of different dims, a table by row number, and dense weights; two outputs."""

    def __init__(self):
        draw = np.random.default_rng(3)
        self.user = ge.get_embedding_variable("server_user", embedding_dim=4)
        self.item = ge.get_embedding_variable("server_item", embedding_dim=8)
        self.city = tf.Variable(draw.normal(size=[10, 2]).astype(np.float32), name="city")
        self.weights = tf.Variable(draw.normal(size=[14, 1]).astype(np.float32), name="weights")
        for table, dim in ((self.user, 4), (self.item, 8)):
            table.insert(np.arange(10), draw.normal(size=[10, dim]).astype(np.float32))

    @tf.function
    def serve(self, user, item, city):
        rows = ge.group_embedding_lookup([self.user, self.item, self.city], [user, item, city])
        joined = tf.concat(rows, axis=1)
        return {"logit": tf.matmul(joined, self.weights)[:, 0], "rows": joined}

    def signature(self):
        ids = {n: tf.TensorSpec([None], tf.int64, name=n) for n in ("user", "item", "city")}
        return self.serve.get_concrete_function(**ids)

    def train(self, step):
        """One step: other rows of known keys, a new key, other weights."""
        for table, keys in ((self.user, KEYS["user"]), (self.item, [123456, 1])):
            dim = int(table.shape[-1])
            table.insert(np.array(keys), np.full([len(keys), dim], step, np.float32) / 8)
        self.city.scatter_nd_update([[3]], [[step, -step]])
        self.weights.assign_add(tf.ones_like(self.weights) * 0.125)

    def expected(self):
        return {name: value.numpy() for name, value in self.serve(**inputs()).items()}


def inputs():
    return {name: np.array(ids) for name, ids in KEYS.items()} | {"city": np.array([0, 3, 9, 3])}


@pytest.fixture
def own_server(program):
    if not program.with_name("libge_serving.so").exists():
        pytest.skip("libge_serving is not built: make build")
    started = []

    def start(models, *arguments, **keywords):
        started.append(server.ServerProcess(models, *arguments, **keywords))
        return started[-1].__enter__()

    yield start
    for one in started:
        one.__exit__()


def assert_equal(outputs, expected):
    assert set(outputs) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(outputs[name], values)


def test_a_saved_model(own_server, tmp_path):
    # Given a model that was trained and exported
    model = Model()
    model.train(1)
    tf.saved_model.save(model, str(tmp_path / "4"), signatures=model.signature())

    # When a server has it
    served = own_server({"m": tmp_path})
    with Client(served) as client:
        outputs, version = client.predict(inputs())
        signatures, _ = client.metadata()
        with pytest.raises(Exception, match="item"):
            client.predict({"user": np.array([1])})
        with pytest.raises(Exception, match="user"):
            client.predict({**inputs(), "user": np.array([1.5])})

        # Then it answers what the trainer computes, after bad requests, too
        assert_equal(outputs, model.expected())
        assert_equal(client.predict(inputs())[0], outputs)
    assert version == 4
    assert set(signatures["serving_default"].inputs) == {"user", "item", "city"}


def test_versions_of_a_publisher(own_server, tmp_path):
    # Given a publisher's first version, and a server that follows it and keeps its state
    model = Model()
    target = tmp_path / "target"
    state = tmp_path / "state"
    state.mkdir()
    follow = {"sources": {"m": target}}
    arguments = (*POLL, "--state", str(state))
    with Publisher(model, target, signatures=model.signature()) as publisher:
        version = publisher.publish()
        expected = {version: model.expected()}
        served = own_server({"m": target}, *arguments, **follow)
        with Client(served) as client:
            # When three versions come
            for step in range(3):
                model.train(step)
                version = publisher.publish()
                expected[version] = model.expected()
                wait_for(lambda version=version: client.predict(inputs())[1] == version)

                # Then each answer is the trainer's of its version, to the bit
                assert_equal(client.predict(inputs())[0], expected[version])

    # And a server that was killed begins at the version that it had
    served.kill()
    with Client(own_server({"m": target}, *arguments, **follow)) as client:
        outputs, again = client.predict(inputs())
    assert again == version
    assert_equal(outputs, expected[version])


def test_quantized_rows(own_server, tmp_path):
    # Given a model, and two servers, one of which has rows in int8
    model = Model()
    model.train(1)
    tf.saved_model.save(model, str(tmp_path / "4"), signatures=model.signature())
    exact = own_server({"m": tmp_path})
    coarse = own_server({"m": tmp_path}, "--quantize", "int8")

    # When both answer
    with Client(exact) as one, Client(coarse) as other:
        rows = one.predict(inputs())[0]["rows"]
        quantized = other.predict(inputs())[0]["rows"]

    # Then the rows are others, by less than their type's step, and the tables say their type
    assert (rows != quantized).any()
    for columns in (slice(0, 4), slice(4, 12), slice(12, 14)):
        span = np.ptp(rows[:, columns], axis=1, keepdims=True) + np.abs(rows[:, columns])
        assert (np.abs(rows - quantized)[:, columns] <= span / 255 + 1e-6).all()
    assert "<td>int8</td>" in http(coarse, "/")[1]
    assert "<td>int8</td>" not in http(exact, "/")[1]


def test_threads_between_ops(own_server, tmp_path):
    # Given a model, and servers with and without threads for ops side by side
    model = Model()
    tf.saved_model.save(model, str(tmp_path / "4"), signatures=model.signature())
    without = own_server({"m": tmp_path}, "--inter-op-threads", "0")
    side_by_side = own_server({"m": tmp_path}, "--inter-op-threads", "40")

    # When both answer
    with Client(without) as one, Client(side_by_side) as other:
        answers = [client.predict(inputs())[0] for client in (one, other)]

    # Then TensorFlow has the threads, and each answer is the trainer's
    for outputs in answers:
        assert_equal(outputs, model.expected())
    assert num_threads(side_by_side) - num_threads(without) >= 30  # others come and go


def num_threads(served):
    return len(list(Path(f"/proc/{served.pid}/task").iterdir()))


def test_rows_on_disk(own_server, tmp_path):
    # Given two models, in memory and with their rows on disk
    for name, steps in (("a", 1), ("b", 2)):
        model = Model()
        model.train(steps)
        tf.saved_model.save(model, str(tmp_path / name / "1"), signatures=model.signature())
    models = {name: tmp_path / name for name in "ab"}
    tiers = f"memory=1kB,rocksdb={tmp_path / 'rows'}"
    # When a server of each kind answers, Then they answer the same
    with (
        Client(own_server(models)) as whole,
        Client(own_server(models, "--tiers", tiers)) as tiered,
    ):
        for name in models:
            expected = whole.predict(inputs(), model=name)[0]
            assert_equal(tiered.predict(inputs(), model=name)[0], expected)
