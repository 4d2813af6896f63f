"""Answers of joined requests of real models: to the bit those of each alone, but for products
of matrices, whose sums may be added up in another order."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import tensorflow as tf
from support.servers.server_clients import Client, http

import group_embedding as ge
from group_embedding.serving import InferenceSession, server

SEED = 11
CLIENTS, EACH = 12, 25
# Sums of 400 products of positive numbers in float32, in two orders.
PRODUCT = {"rtol": 3e-6}


class Model(tf.Module):
    """Keyed tables and one by row number, of dense, ragged, nested ragged and sparse ids."""

    def __init__(self, scale):
        draw = np.random.default_rng(3)
        self.user = ge.get_embedding_variable(f"joined_user_{scale}", embedding_dim=8)
        self.item = ge.get_embedding_variable(f"joined_item_{scale}", embedding_dim=4)
        for table, dim in ((self.user, 8), (self.item, 4)):
            values = scale * draw.normal(size=[500, dim])
            table.insert(np.arange(500), values.astype(np.float32))
        self.city = tf.Variable((scale * draw.normal(size=[50, 12])).astype(np.float32))
        self.hidden = tf.Variable(draw.normal(size=[24, 400]).astype(np.float32))
        self.weights = tf.Variable(np.abs(draw.normal(size=[400, 3])).astype(np.float32))

    def _rows(self, user, item, city):
        tables, ids = [self.user, self.item, self.city], [user, item, city]
        return ge.group_embedding_lookup_sparse(tables, ids, combiners=["mean", "sum", "sqrtn"])

    @tf.function
    def composite(self, user, item, city, bias, words, nested):
        rows = self._rows(user, item, city)
        lengths = tf.strings.length(words)
        of_nested = tf.reduce_sum(tf.reduce_sum(nested, 2), 1)
        return {
            "rows": tf.concat(rows, 1) + bias,
            "words": tf.strings.join([words, tf.strings.as_string(lengths)]),
            "nested": of_nested,
        }

    @tf.function
    def dense(self, user, item, city):
        rows = ge.group_embedding_lookup([self.user, self.item, self.city], [user, item, city])
        joined = tf.concat([tf.reduce_sum(one, 1) for one in rows], 1)
        return {"logits": tf.nn.relu(joined @ self.hidden) @ self.weights, "rows": joined}

    def export(self, path):
        tf.saved_model.save(
            self,
            str(path),
            signatures={
                "serving_default": self.dense.get_concrete_function(
                    *[tf.TensorSpec([None, 3], tf.int64, name=n) for n in ("user", "item", "city")]
                ),
                "composite": self.composite.get_concrete_function(
                    tf.RaggedTensorSpec([None, None], tf.int64, row_splits_dtype=tf.int64),
                    tf.SparseTensorSpec([None, None], tf.int64),
                    tf.RaggedTensorSpec([None, None], tf.int64, row_splits_dtype=tf.int32),
                    tf.TensorSpec([None, 1], tf.float32, name="bias"),
                    tf.TensorSpec([None], tf.string, name="words"),
                    tf.RaggedTensorSpec([None, None, None], tf.int64),
                ),
            },
        )


def draw_dense(random):
    samples = random.integers(1, 5)
    high = {"user": 600, "item": 500, "city": 50}
    return {n: random.integers(0, high[n], [samples, 3]) for n in high}


def draw_composite(random):
    samples = int(random.integers(1, 5))
    lengths = random.integers(0, 4, [3, samples])
    splits = np.concatenate([np.zeros([3, 1], np.int64), np.cumsum(lengths, 1)], 1)
    nested = random.integers(0, 3, splits[2, -1])
    inner = np.concatenate([[0], np.cumsum(nested)])
    rows = np.repeat(np.arange(samples), lengths[1])
    columns = np.concatenate([np.arange(n) for n in lengths[1]] + [[]]).astype(np.int64)
    words = [b"w" * int(n) for n in random.integers(0, 6, samples)]
    return {
        "user": random.integers(0, 600, splits[0, -1]),
        "user_1": splits[0],
        "item": np.stack([rows, columns], 1).astype(np.int64),
        "item_1": random.integers(0, 500, len(rows)),
        "item_2": np.array([samples, 4]),
        "city": random.integers(0, 50, splits[1, -1]),
        "city_1": splits[1].astype(np.int32),
        "bias": random.normal(size=[samples, 1]).astype(np.float32),
        "words": np.array(words, object),
        "nested": random.integers(0, 9, inner[-1]),
        "nested_1": splits[2],
        "nested_2": inner,
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Versions 1 and 2."""
    folder = tmp_path_factory.mktemp("joined")
    for version in (1, 2):
        Model(version).export(folder / str(version))
    return folder


@pytest.fixture(scope="module")
def draws(models):
    """{signature: (draws requests, {version: their answers alone})}."""
    random = np.random.default_rng(SEED)
    found = {}
    for name, draw in (("serving_default", draw_dense), ("composite", draw_composite)):
        requests = [draw(random) for _ in range(CLIENTS * EACH)]
        alone = {}
        for version in (1, 2):
            with InferenceSession(str(models / str(version))) as session:
                alone[version] = [session.predict(one, name) for one in requests]
        found[name] = requests, alone
    return found


def metric(one, name):
    lines = http(one, "/metrics")[1].splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def compare(outputs, expected):
    """Compares all but products to the bit. Returns the largest relative difference of products."""
    assert set(outputs) == set(expected)
    for name, values in expected.items():
        if name != "logits":
            np.testing.assert_array_equal(outputs[name], values)
    if "logits" not in expected:
        return 0
    np.testing.assert_allclose(outputs["logits"], expected["logits"], **PRODUCT)
    return np.abs(outputs["logits"] / expected["logits"] - 1).max()


def test_parts_of_inputs(models):
    # Given a model of a ragged, a sparse and a nested argument
    with InferenceSession(str(models / "1")) as session:
        # When its signatures are read
        inputs = session.signatures()["composite"]["inputs"]

    # Then they say which inputs are one tensor
    parts = {k: (v["part"], v["of"], v["level"]) for k, v in inputs.items() if "part" in v}
    assert parts == {
        "user": ("flat_values", "user", 0),
        "user_1": ("row_splits", "user", 0),
        "item": ("indices", "item", 0),
        "item_1": ("values", "item", 0),
        "item_2": ("dense_shape", "item", 0),
        "city": ("flat_values", "city", 0),
        "city_1": ("row_splits", "city", 0),
        "nested": ("flat_values", "nested", 0),
        "nested_1": ("row_splits", "nested", 0),
        "nested_2": ("row_splits", "nested", 1),
    }


def test_joined_answers_are_those_of_each_alone(program, models, draws, tmp_path):
    # Given a server of two models, whose second one gets a version while it answers
    print("seed", SEED)
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.mkdir()
        (path / "1").symlink_to(models / "1")
    failures, largest, versions = [], [0.0], set()
    arguments = ("--enable_batching", "--threads=1", "--poll-seconds=0.1")
    with server.ServerProcess({"first": first, "second": second}, *arguments) as one:

        def send(number):
            random = np.random.default_rng(number)
            with Client(one) as client:
                for i in range(EACH):
                    name = ("serving_default", "composite")[random.integers(2)]
                    model = ("first", "second")[random.integers(2)]
                    requests, alone = draws[name]
                    which = number * EACH + i
                    if number == 0 and i == EACH // 2:
                        (second / "2").symlink_to(models / "2")
                    try:
                        outputs, version = client.predict(
                            requests[which], model=model, signature=name
                        )
                        versions.add((model, version))
                        largest.append(compare(outputs, alone[version][which]))
                    except Exception as error:
                        failures.append((name, which, error))

        # When many clients send requests of several signatures side by side
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(send, range(CLIENTS)))
        joined = metric(one, "ge_serve_joined_requests_total")

    # Then each answer is its own, and some were computed with others
    assert failures == []
    assert joined > 0
    assert ("first", 1) in versions and ("first", 2) not in versions
    print(f"{joined:.0f} joined, largest difference of products {max(largest):.3g}")


@pytest.mark.parametrize("wrong", ["splits", "order", "row", "city"])
def test_a_malformed_request_harms_no_other(program, models, draws, wrong):
    # Given requests of ragged and sparse inputs, of which some are malformed, or have an id that
    # the table by row number has not
    requests, alone = draws["composite"]
    rights = [which for which in range(100) if len(requests[which]["city"]) > 0][:30]
    bad = next(dict(r) for r in requests if len(r["item"]) > 1 and r["user_1"][-1] > 1)
    rows = bad["item"].copy()
    if wrong == "splits":
        bad["user_1"] = bad["user_1"] + 1
    elif wrong == "order":
        bad["item"] = rows[::-1] if rows[0, 0] != rows[-1, 0] else rows + 1
    elif wrong == "row":
        rows[-1, 0] = bad["item_2"][0]
        bad["item"] = rows
    else:
        bad["city"] = bad["city"] + 1000
    arguments = ("--enable_batching", "--threads=1")
    with server.ServerProcess({"m": models / "1"}, *arguments) as one, Client(one) as client:
        stop = threading.Event()

        def send_bad():
            while not stop.is_set():
                with contextlib.suppress(grpc.RpcError):
                    client.predict(bad, signature="composite")

        def send(which):
            outputs, _ = client.predict(requests[which], signature="composite")
            return compare(outputs, alone[1][which])

        # When both are sent side by side
        with ThreadPoolExecutor(10) as pool:
            attackers = [pool.submit(send_bad) for _ in range(2)]
            try:
                list(pool.map(send, rights))
            finally:
                stop.set()
            for attacker in attackers:
                attacker.result()

        # Then the right ones got their answers, and the server goes on
        assert one.running()
