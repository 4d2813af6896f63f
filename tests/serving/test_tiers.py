"""Rows of served models in RocksDB or Redis, with as many in memory as fit: the answers of a model
in memory, to the bit, in every version."""

import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from support.cases.shop_models import (
    USERS,
    Shop,
    answers,
    assert_serves,
    change,
    request,
    version_folder,
)

import group_embedding as ge
from group_embedding.serving import InferenceSession, Publisher
from group_embedding.serving.__main__ import main

MANY = 5000


class Wide(tf.Module):
    """Three tables by key, of dims and sizes of their own: row k has k in all columns, negated in
    the second. One has ten rows, one none."""

    def __init__(self):
        option = ge.EmbeddingVariableOption(
            init_option=ge.InitializerOption(initializer=tf.keras.initializers.Constant(-1.0))
        )
        self.tables = {
            name: ge.get_embedding_variable(f"tiers_{name}", dim, ev_option=option)
            for name, dim in {"many": 3, "few": 5, "none": 2}.items()
        }
        for name, count in {"many": MANY, "few": 10}.items():
            keys = np.arange(count)
            signs = np.where(np.arange(self.tables[name].shape[1]) == 1, -1, 1)
            rows = (keys[:, None] * signs).astype(np.float32)
            self.tables[name].insert(keys, rows)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="keys")])
    def serve(self, keys):
        found = ge.group_embedding_lookup([*self.tables.values()], [keys] * 3)
        return dict(zip(self.tables, found))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide") / "1"
    model = Wide()
    tf.saved_model.save(model, str(folder), signatures=model.serve)
    return model, folder


@pytest.fixture(params=["rocksdb", "redis"])
def below(request, tmp_path):
    """A tier below memory without rows, as users name it."""
    if request.param == "rocksdb":
        return f"rocksdb={tmp_path / 'rows'}"
    return f"redis={request.getfixturevalue('redis_url')}"


def in_tiers(folder, below, memory="20kB", **options):
    return InferenceSession(folder, tiers=f"memory={memory},{below}", **options)


def table(session, name):
    (found,) = [t for t in session.info()["tables"] if t["name"] == f"tiers_{name}"]
    return found


@pytest.mark.covering(1)
@pytest.mark.parametrize("memory", ["1", "20kB", "1GiB"])
def test_answers_are_those_of_memory(wide, below, memory):
    # Given a model in memory, and one in tiers whose memory has few of the rows, or more than all
    _, folder = wide
    draw = np.random.default_rng(1)
    with InferenceSession(folder) as whole, in_tiers(folder, below, memory) as tiered:
        # When both are asked for keys, trained ones and others, again and again
        for _ in range(30):
            keys = draw.integers(-5, MANY + 50, 400)
            expected, found = (session.predict({"keys": keys}) for session in (whole, tiered))
            # Then they answer the same
            for name, rows in expected.items():
                np.testing.assert_array_equal(found[name], rows, err_msg=name)
        # And the cache holds what fits
        many = table(tiered, "many")
        assert many["rows"] == MANY and many["fetched"] > 0 and many["absent"] > 0
        if memory == "1GiB":
            assert many["evicted"] == 0 and many["cached"] == many["fetched"] <= MANY
        else:
            assert many["evicted"] > 0 and many["cached"] < 1000
        assert table(tiered, "few")["cached"] <= 10 and table(tiered, "none")["cached"] == 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_every_version_is_the_trainers(tmp_path, below, quantize):
    # Given a model that is published, and sessions in memory and in tiers
    model = Shop()
    with Publisher(model, tmp_path / "target", signatures=model.serve) as publisher:
        publisher.publish(step=1)
        options = {"quantize": quantize}
        with (
            InferenceSession(tmp_path / "target/1", **options) as whole,
            in_tiers(tmp_path / "target/1", below, "400", **options) as tiered,
        ):
            for version in range(2, 7):
                # When rows, new keys and erased keys are published, and both take them
                change(model, version)
                publisher.publish(step=version)
                for session in (whole, tiered):
                    session.apply(version_folder(tmp_path / "target", version))
                # Then both answer the same, in this version and in the one before
                if quantize is None:
                    assert_serves(tiered, model, version)
                for _ in range(2):
                    for seed in range(3):
                        expected, found = (
                            session.predict(request(40, seed)) for session in (whole, tiered)
                        )
                        for name, value in expected.items():
                            np.testing.assert_array_equal(found[name], value, err_msg=name)
                    if version % 2:
                        break
                    assert whole.rollback() == tiered.rollback() == version - 1
                    for session in (whole, tiered):  # and forward again
                        session.apply(version_folder(tmp_path / "target", version))


def test_rows_that_were_quantised_in_files(tmp_path, below):
    # Given a model whose rows were quantised in its files
    model = Shop()
    tf.saved_model.save(model, str(tmp_path / "1"), signatures=model.serve)
    small = tmp_path / "small" / "1"
    assert main(["quantize", str(tmp_path / "1"), str(small), "--to", "int8"]) == 0
    with InferenceSession(small) as whole:
        expected = whole.predict(request(40))
    for _ in range(2):  # filled by the first, found by the second
        # When it opens in tiers
        with in_tiers(small, below, "400") as tiered:
            # Then it answers as in memory
            for name, rows in tiered.predict(request(40)).items():
                np.testing.assert_array_equal(rows, expected[name], err_msg=name)


def test_an_erased_key_stays_erased(tmp_path, below):
    # Given a served row below memory, whose key the trainer then erases
    model = Shop()
    key = np.array([USERS[0]])
    with Publisher(model, tmp_path / "target", signatures=model.serve) as publisher:
        publisher.publish(step=1)
        with in_tiers(tmp_path / "target/1", below, "1") as session:
            model.user.erase(key)
            publisher.publish(step=2)
            session.apply(version_folder(tmp_path / "target", 2))
            for version in range(3, 6):  # moves overlays into the base
                change(model, version)
                model.user.erase(key)
                publisher.publish(step=version)
                session.apply(version_folder(tmp_path / "target", version))
            # Then it reads what the trainer's does
            assert_serves(session, model, 5)


def test_rows_are_loaded_once(wide, tmp_path, below):
    # Given a model whose rows were loaded by the command, and which then lost a table's file
    folder = shutil.copytree(wide[1], tmp_path / "1")
    tiers = f"memory=20kB,{below}"
    assert main(["load", str(folder), "--tiers", tiers]) == 0
    (rows,) = (p for p in (folder / "variables").iterdir() if b"tiers_many" in p.read_bytes()[:99])
    rows.write_bytes(b"")
    with pytest.raises(tf.errors.DataLossError):
        InferenceSession(folder)
    # When it opens on the loaded rows, Then it answers
    with InferenceSession(folder, tiers=tiers) as session:
        found = session.predict({"keys": np.array([7, 4999])})
        assert found["many"][:, 0].tolist() == [7, 4999]
        assert table(session, "many")["rows"] == MANY


@pytest.mark.slow
def test_a_load_that_is_killed_begins_again(wide, below):
    # Given loads that are killed at several instants
    program = f"""
import os, sys, threading
from group_embedding.serving import InferenceSession
threading.Timer(float(sys.argv[1]), lambda: os.kill(os.getpid(), 9)).start()
while True:
    InferenceSession({str(wide[1])!r}, tiers="memory=20kB,{below}").close()
"""
    for seconds in (0.01, 0.06):
        done = subprocess.run([sys.executable, "-c", program, str(seconds)], check=False)
        assert done.returncode == -9
    # When another process opens the model, Then every key has its row
    with in_tiers(wide[1], below) as session:
        keys = np.arange(MANY)
        np.testing.assert_array_equal(session.predict({"keys": keys})["many"][:, 0], keys)


def test_old_contents_are_removed(tmp_path):
    rocksdb = f"rocksdb={tmp_path / 'rows'}"
    # Given three bases of a model, opened one after the other
    model = Shop()
    for base in (1, 2, 3):
        change(model, base)
        tf.saved_model.save(model, str(tmp_path / str(base)), signatures=model.serve)
        with in_tiers(tmp_path / str(base), rocksdb) as session:
            expected = answers(model, request(20))
            # Then each answers as the trainer
            np.testing.assert_array_equal(session.predict(request(20))["rows"], expected["rows"])
    # And the first one's rows are gone: it needs its own file again
    for path in (tmp_path / "1/variables").iterdir():
        if b"user" in path.read_bytes()[:99]:
            path.write_bytes(b"")
    with pytest.raises(tf.errors.DataLossError):
        in_tiers(tmp_path / "1", rocksdb)


def test_rows_of_an_open_model_stay(tmp_path, below):
    # Given a model that stays open while others of its tables come
    model = Shop()
    tf.saved_model.save(model, str(tmp_path / "1"), signatures=model.serve)
    expected = answers(model, request(40, 7))["rows"]
    with in_tiers(tmp_path / "1", below, "1") as first:
        for base in (2, 3, 4):
            change(model, base)
            tf.saved_model.save(model, str(tmp_path / str(base)), signatures=model.serve)
            in_tiers(tmp_path / str(base), below).close()
        # When it is asked for rows that it has not had in memory, Then they are its own
        np.testing.assert_array_equal(first.predict(request(40, 7))["rows"], expected)


def test_threads_under_a_small_cache(wide, below):
    # Given a cache of some rows, and threads that ask for all
    _, folder = wide
    wrong, stop = [], threading.Event()

    def ask(session, seed):
        draw = np.random.default_rng(seed)
        while not stop.is_set():
            keys = draw.integers(0, MANY, 64)
            if (session.predict({"keys": keys})["many"][:, 0] != keys).any():
                wrong.append(keys)

    with in_tiers(folder, below, "10kB") as session:
        threads = [threading.Thread(target=ask, args=(session, seed)) for seed in range(6)]
        for thread in threads:
            thread.start()
        # When rows have left the cache again and again, while another thread asks for the counts
        deadline = time.monotonic() + 60
        while table(session, "many")["evicted"] < 2000 and time.monotonic() < deadline:
            assert table(session, "many")["bytes"] > 0
        stop.set()
        for thread in threads:
            thread.join()
        # Then every row was its key's
        assert not wrong
        assert table(session, "many")["evicted"] >= 2000


@pytest.mark.parametrize(
    "tiers", ["", "memory=1GB", "rocksdb=/tmp/x", "memory=lots,rocksdb=/tmp/x", "memory=1GB,hbm=2"]
)
def test_tiers_that_are_none(wide, tiers):
    with pytest.raises(ValueError, match="expected memory=SIZE,rocksdb=FOLDER"):
        InferenceSession(wide[1], tiers=tiers)


def test_a_folder_that_cannot_be_used(wide, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(tf.errors.UnavailableError, match="rocksdb=.*file"):
        in_tiers(wide[1], f"rocksdb={tmp_path / 'file'}")
