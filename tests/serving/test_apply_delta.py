"""Deltas move an InferenceSession from version to version, as the trainer published them."""

import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf
from support.cases import shop_models
from support.cases.shop_models import (
    Shop,
    Versions,
    answers,
    assert_serves,
    change,
    request,
    version_folder,
)

from group_embedding.serving import InferenceSession, Publisher


@pytest.fixture
def published(tmp_path):
    """A model, its publisher, and the target with a base, version 1."""
    model = Shop()
    publisher = Publisher(model, tmp_path / "target", signatures=model.serve)
    publisher.publish(step=10)
    yield model, publisher, tmp_path / "target"
    publisher.close()


def test_every_version_is_the_trainers_to_the_bit(published):
    model, publisher, target = published
    with InferenceSession(target / "1") as session:
        assert_serves(session, model, 1)
        for version in range(2, 7):
            # When the trainer publishes a version, and the session applies it
            change(model, version)
            assert publisher.publish(step=10 * version) == version
            assert session.apply(version_folder(target, version)) == version
            # Then it answers as the trainer does
            assert_serves(session, model, version)
        info = session.info()
        assert (info["version"], info["previous_version"], info["base_version"]) == (6, 5, 1)
        assert info["step"] == 60
        assert 0 <= info["staleness_seconds"] < 600


class Counted(tf.Module):
    """Hash tables of both kinds that a trainer has filled, and a variable."""

    def __init__(self):
        super().__init__()
        tables = tf.lookup.experimental
        self.plain = tables.MutableHashTable(tf.string, tf.int64, -1)
        self.dense = tables.DenseHashTable(tf.int64, tf.float32, [0.5, 0.5], -8, -9)
        self.plain.insert(["a", "b"], tf.constant([3, 4], tf.int64))
        self.dense.insert(tf.constant([3, 4], tf.int64), [[1.0, 2.0], [3.0, 4.0]])
        self.weight = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
    def serve(self, word):
        return {"row": self.dense.lookup(self.plain.lookup(word)) * self.weight}


def test_versions_have_the_hash_tables_of_their_base(tmp_path):
    # Given a model with hash tables, which a checkpoint holds, and two deltas of its weight
    model = Counted()
    with Publisher(model, tmp_path, signatures=model.serve) as publisher:
        publisher.publish()
        for weight in (3.0, 5.0):
            model.weight.assign(weight)
            publisher.publish()
    # When they are applied
    with InferenceSession(tmp_path / "1") as session:
        found = [session.predict({"word": ["b", "x", "a"]})["row"]]
        for version in (2, 3):
            session.apply(version_folder(tmp_path, version))
            found.append(session.predict({"word": ["b", "x", "a"]})["row"])
    # Then each version finds what the trainer put into them
    row = np.array([[3, 4], [0.5, 0.5], [1, 2]], np.float32)
    np.testing.assert_array_equal(found, [row * 2, row * 3, row * 5])


@pytest.mark.parametrize("quantize", ["bfloat16", "int8", "fp8"])
def test_quantised_rows_follow_deltas(published, quantize):
    model, publisher, target = published
    with InferenceSession(target / "1", quantize=quantize) as session:
        for version in (2, 3):
            change(model, version)
            publisher.publish()
            session.apply(version_folder(target, version))
        found = session.predict(request(20))
        fresh_folder = shop_models.export(model, target.parent / "fresh")
        with InferenceSession(fresh_folder, quantize=quantize) as fresh:
            expected = fresh.predict(request(20))
        # Then it answers as the quantised model of the trainer, and nearly as the trainer
        np.testing.assert_array_equal(found["rows"], expected["rows"])
        exact = answers(model, request(20))["rows"]
        most = {"bfloat16": 2**-7, "int8": 0.05, "fp8": 2**-3}[quantize]
        assert np.abs(found["rows"] - exact).max() <= most * np.abs(exact).max()
        assert (found["rows"] != exact).any()


def test_a_rollback_returns_and_goes_on(published):
    # Given versions 2 and 3, applied
    model, publisher, target = published
    before = {}
    with InferenceSession(target / "1") as session:
        for version in (2, 3):
            change(model, version)
            publisher.publish()
            session.apply(version_folder(target, version))
            before[version] = session.predict(request(20))
        # When the last one is taken back
        assert session.rollback() == 2
        # Then version 2 answers, once
        found = session.predict(request(20))
        assert found.version == 2
        np.testing.assert_array_equal(found["score"], before[2]["score"])
        with pytest.raises(tf.errors.FailedPreconditionError, match="taken back, once"):
            session.rollback()
        # And version 3 can be applied again, and the next one
        assert session.apply(version_folder(target, 3)) == 3
        assert_serves(session, model, 3)
        change(model, 4)
        publisher.publish()
        assert session.apply(version_folder(target, 4)) == 4
        assert_serves(session, model, 4)


def test_dense_weights_stay_while_rows_alone_change(published):
    # Given a version with other weights, applied
    model, publisher, target = published
    with InferenceSession(target / "1") as session:
        change(model, 2)
        publisher.publish()
        session.apply(version_folder(target, 2))
        for version in (3, 4, 5):
            # When a version has changed rows alone
            model.brand.insert(np.arange(5, 20), np.full([15, 4], version, np.float32))
            publisher.publish()
            session.apply(version_folder(target, version))
            # Then it answers with them and the weights of the version before
            assert_serves(session, model, version)
        # And after a rollback the next version has all of its own
        session.rollback()
        assert session.predict(request(20)).version == 4
        assert session.apply(version_folder(target, 5)) == 5
        assert_serves(session, model, 5)


def test_repeated_and_out_of_order_deltas_are_refused(published, tmp_path):
    model, publisher, target = published
    with InferenceSession(target / "1") as session:
        for version in (2, 3):
            change(model, version)
            publisher.publish()
        with pytest.raises(tf.errors.FailedPreconditionError, match="the version after 1, got"):
            session.apply(version_folder(target, 3))
        session.apply(version_folder(target, 2))
        with pytest.raises(tf.errors.AlreadyExistsError, match="the model has version 2"):
            session.apply(version_folder(target, 2))
        session.apply(version_folder(target, 3))
        assert_serves(session, model, 3)
    # A delta of another base, and a model that no publisher wrote
    other = Shop()
    with Publisher(other, tmp_path / "other", signatures=other.serve) as publisher:
        publisher.publish()
        change(other, 2)
        publisher.publish()
    expected = pytest.raises(tf.errors.FailedPreconditionError, match="got one of another base")
    with InferenceSession(target / "1") as session, expected:
        session.apply(version_folder(tmp_path / "other", 2))
    plain = shop_models.export(model, tmp_path / "1")
    expected = pytest.raises(tf.errors.FailedPreconditionError, match="a base that a Publisher")
    with InferenceSession(plain) as session, expected:
        session.apply(version_folder(target, 2))


def test_damaged_and_partial_deltas_are_refused(published, tmp_path):
    # Given a delta, with a flipped byte or a cut end in each of its files, or without the file
    model, publisher, target = published
    with InferenceSession(target / "1") as session:
        before = session.predict(request(20))
        change(model, 2)
        publisher.publish()
        good = version_folder(target, 2)
        draw = np.random.default_rng(5)
        for path in sorted(good.iterdir()):
            content = path.read_bytes()
            flipped = bytearray(content)
            flipped[draw.integers(len(content))] ^= 1 << draw.integers(8)
            for damage in (bytes(flipped), content[: draw.integers(len(content))], None):
                bad = shutil.copytree(good, tmp_path / "bad")
                if damage is None:
                    (bad / path.name).unlink()
                else:
                    (bad / path.name).write_bytes(damage)
                # When it is applied, Then it is refused
                with pytest.raises(tf.errors.OpError):
                    session.apply(bad)
                shutil.rmtree(bad)
        # And the model is as before
        after = session.predict(request(20))
        assert after.version == 1
        np.testing.assert_array_equal(after["score"], before["score"])
        session.apply(good)
        assert_serves(session, model, 2)


def test_the_applied_version_outlives_the_process(published, tmp_path):
    model, publisher, target = published
    state = tmp_path / "state"
    with InferenceSession(target / "1", state=state) as session:
        for version in (2, 3):
            change(model, version)
            publisher.publish()
            session.apply(version_folder(target, version))
    # When the model is opened again, Then it begins where it was
    with InferenceSession(target / "1", state=state) as session:
        assert_serves(session, model, 3)
        session.rollback()
    with InferenceSession(target / "1", state=state) as session:
        assert session.version == 2
    # And a state that something else wrote is refused
    state.write_text("something else")
    with pytest.raises(tf.errors.DataLossError, match="expected a file that"):
        InferenceSession(target / "1", state=state)


def test_no_request_sees_two_versions(tmp_path):
    """Eight threads ask while deltas are applied; test_torn_reads.py asks more."""
    # Given a model whose every number is its version, and its deltas
    model = Versions()
    target = tmp_path / "target"
    commits = 12
    with Publisher(model, target, signatures=model.serve, base_every=None) as publisher:
        publisher.publish()
        for version in range(2, commits + 2):
            model.set(version)
            publisher.publish()
    # When eight threads ask while the deltas are applied
    mixed, counts, stop = [], [0] * 8, threading.Event()
    keys = {"key": Versions.KEYS}
    with InferenceSession(target / "1") as session:

        def ask(thread):
            newest = 0
            while not stop.is_set():
                found = session.predict(keys)
                same = (found["rows"] == found.version).all() and found["dense"] == found.version
                if not same or found.version < newest:
                    mixed.append((newest, found))
                    return
                newest = found.version
                counts[thread] += 1

        threads = [threading.Thread(target=ask, args=[thread]) for thread in range(8)]
        for thread in threads:
            thread.start()
        for version in range(2, commits + 2):
            session.apply(version_folder(target, version))
        stop.set()
        for thread in threads:
            thread.join()
    # Then each answer is of one version, and versions only rise
    assert mixed == []
    assert min(counts) > 0
