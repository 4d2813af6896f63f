"""Rows that were quantised in files are those that a session quantises as it opens."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.cases import shop_models
from support.cases.shop_models import Shop, request

import group_embedding as ge
from group_embedding.serving import InferenceSession, Publisher
from group_embedding.serving.__main__ import main

FORMATS = ["int8", "fp8", "bfloat16"]
BYTES = {"int8": 68, "fp8": 68, "bfloat16": 128}  # of a row of dim 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return shop_models.export(Shop(), tmp_path_factory.mktemp("quantised") / "3")


def predict(path, **options):
    with InferenceSession(path, **options) as session:
        storages = {t["name"]: t["storage"] for t in session.info()["tables"]}
        return storages, dict(session.predict(request(40)))


@pytest.mark.parametrize("to", FORMATS)
def test_values_are_those_of_a_session_that_quantises(to, folder, tmp_path, capsys):
    # Given a model of two keyed tables and one by row number, quantised in files
    assert main(["quantize", folder, str(tmp_path / "3"), "--to", to]) == 0
    assert " bytes, 0." in capsys.readouterr().out

    # When it is opened as it is, and as what it is
    storages, found = predict(tmp_path / "3")
    _, again = predict(tmp_path / "3", quantize=to)
    _, expected = predict(folder, quantize=to)

    # Then answers are equal to the bit, and all tables are quantised
    assert storages == dict.fromkeys(["user", "brand", "item"], to)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(again[name], value)


class ByRowNumber(tf.Module):
    """A table by row number, and a variable of its shape that a product reads."""

    def __init__(self, dtype):
        super().__init__()
        draw = np.random.default_rng(6)
        self.table = tf.Variable(tf.cast(draw.normal(size=[500, 64]), dtype), name="rows")
        self.dense = tf.Variable(tf.cast(draw.normal(size=[500, 64]), dtype), name="dense")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="id")])
    def serve(self, id):
        rows = ge.group_embedding_lookup([self.table], [id])[0]
        return {"rows": rows, "sum": tf.reduce_sum(self.dense)[None]}


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
@pytest.mark.parametrize("to", FORMATS)
def test_tables_by_row_number_are_quantised_and_followed(to, dtype, tmp_path):
    # Given versions of a table by row number, the newest of which is quantised
    model, ids = ByRowNumber(dtype), {"id": np.arange(500)}
    publisher = Publisher(model, tmp_path / "target")
    for number in range(3):
        change = tf.fill([2, 64], tf.cast(0.3 + number, dtype))
        model.table.scatter_nd_update([[number], [40 + number]], change)
        model.dense.assign_add(tf.ones_like(model.dense))
        publisher.publish()
    assert main(["quantize", str(tmp_path / "target"), str(tmp_path / "out"), "--to", to]) == 0

    # When the next delta comes to it, and to one that is quantised when opened
    model.table.scatter_nd_update([[7]], tf.fill([1, 64], tf.cast(-2.5, dtype)))
    publisher.publish()
    deltas = [tmp_path / "target" / "versions" / f"{n:020d}" for n in (2, 3, 4)]
    with InferenceSession(tmp_path / "out") as offline:
        before, (table,) = offline.predict(ids), offline.info()["tables"]
        assert offline.apply(deltas[-1]) == 4
        found = offline.predict(ids)
    with InferenceSession(tmp_path / "target" / "1", quantize=to) as session:
        for delta in deltas:
            session.apply(delta)
        expected = session.predict(ids)

    # Then both answer the same, the table takes the bytes that it should, also in files, and the
    # variable that is no table is the trainer's
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    assert (before["rows"][7] != found["rows"][7]).any()
    assert found["sum"] == tf.reduce_sum(model.dense)
    assert table["storage"] == to and table["bytes"] == 500 * BYTES[to]
    stored = tf.train.load_checkpoint(str(tmp_path / "out" / "variables" / "variables"))
    assert stored.get_tensor(table["variable"]).nbytes == 500 * BYTES[to]


class Wide(tf.Module):
    """A keyed table of dim 64."""

    def __init__(self, num_rows):
        super().__init__()
        self.draw = np.random.default_rng(5)
        self.table = shop_models.table("wide", 64)
        self.table.insert(np.arange(num_rows), self.draw.normal(size=[num_rows, 64]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="key")])
    def serve(self, key):
        return {"row": ge.group_embedding_lookup([self.table], [key])[0]}


@pytest.mark.parametrize("to", FORMATS)
def test_a_target_is_quantised_and_followed(to, tmp_path):
    # Given versions of a table, the newest of which is quantised
    model, keys = Wide(3000), np.arange(-5, 3100)
    publisher = Publisher(model, tmp_path / "target")
    for number in range(3):
        model.table.insert(np.arange(100 * number, 100 * number + 50), np.full([50, 64], 0.3))
        model.table.erase([7 * number])
        publisher.publish()
    assert main(["quantize", str(tmp_path / "target"), str(tmp_path / "out"), "--to", to]) == 0

    # When the next delta comes to the quantised model, and to one that was quantised when opened
    model.table.insert([3050, 1], model.draw.normal(size=[2, 64]))
    publisher.publish()
    deltas = [tmp_path / "target" / "versions" / f"{n:020d}" for n in (2, 3, 4)]
    with InferenceSession(tmp_path / "out") as offline:
        assert offline.version == 3 and offline.apply(deltas[-1]) == 4
        found = offline.predict({"key": keys})["row"]
    with InferenceSession(tmp_path / "target" / "1", quantize=to) as session:
        for delta in deltas:
            session.apply(delta)
        expected = session.predict({"key": keys})["row"]

    # Then both answer the same, and rows take the bytes that they should
    np.testing.assert_array_equal(found, expected)
    (rows,) = (tmp_path / "out" / "variables").glob("variables.data-r*")
    assert (
        rows.stat().st_size / 3000 < BYTES[to] + 10
    )  # a key of 8 bytes, and less than 2 of the rest


def test_a_trainer_refuses_quantised_rows(folder, tmp_path):
    main(["quantize", folder, str(tmp_path / "out"), "--to", "int8"])
    # It names the first table that it restores: one by row number has another type
    with pytest.raises(tf.errors.OpError, match="rows.*quantised for serving|original dtype int8"):
        tf.saved_model.load(str(tmp_path / "out"))
    with pytest.raises(ValueError, match="expected 'quantize' to be 'int8'.* or none, got 'fp8'"):
        InferenceSession(tmp_path / "out", quantize="fp8")


@pytest.mark.parametrize("case", ["exists", "no model", "quantised"])
def test_wrong_calls_are_one_sentence(case, folder, tmp_path):
    path, out, message = folder, tmp_path / "out", "expected a folder that does not exist"
    if case == "exists":
        out = tmp_path
    elif case == "no model":
        path, message = str(tmp_path), "expected the folder of a SavedModel, or a publisher's"
    else:
        path, message = str(tmp_path / "int8"), "got rows quantised for serving"
        main(["quantize", folder, path, "--to", "int8"])
    before = sorted(Path(tmp_path).rglob("*"))
    with pytest.raises(SystemExit, match=message):
        main(["quantize", path, str(out), "--to", "int8"])
    assert sorted(Path(tmp_path).rglob("*")) == before
