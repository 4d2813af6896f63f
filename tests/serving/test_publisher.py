"""Published versions are what the model was, whatever else happens to the model."""

import itertools
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from serving.serving_models import TwoTables, assert_same, content_of, reader_of

import group_embedding as ge
from group_embedding.serving.__main__ import main
from group_embedding.serving.publish import version_writer
from group_embedding.serving.stores import records


def test_versions_are_the_model_at_their_instants(model, random, tmp_path):
    # Given a publisher of a model that is saved too, and has another publisher
    checkpoint = tf.train.Checkpoint(model=model)
    publisher = ge.serving.Publisher(model, tmp_path / "a")
    other = ge.serving.Publisher(model, f"file://{tmp_path}/b")
    expected, expected_of_other = {}, {}

    # When versions are published between changes
    for step in range(8):
        model.change(random)
        expected[publisher.publish(step)] = content_of(model)
        if step % 3 == 1:
            checkpoint.save(str(tmp_path / "full"))
        if step % 3 == 2:
            ge.checkpoint.save_changes(checkpoint, str(tmp_path / "changes"))
            model.change(random)
            expected_of_other[other.publish(step)] = content_of(model)

    # Then each has all rows, no erased key and all variables of its instant
    assert list(expected) == list(range(1, 9)) and list(expected_of_other) == [1, 2]
    for folder, of_folder in (("a", expected), ("b", expected_of_other)):
        reader = reader_of(tmp_path / folder)
        for version, content in of_folder.items():
            assert_same(reader.read(version), content)
    # And deltas have changes alone
    last = reader_of(tmp_path / "a").record(8)
    assert last.step == 7 and last.kind == records.DELTA
    assert max(file.bytes for file in last.files) < 20_000


def test_trained_and_evicted_rows_are_published(request, tmp_path):
    # Given a table that evicts old keys as it is saved, trained by an optimizer
    option = ge.GlobalStepEvict(steps_to_live=2)
    model = TwoTables(request.node.name.partition("[")[0], evict_option=option)
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
    checkpoint = tf.train.Checkpoint(model=model)
    publisher = ge.serving.Publisher(model, tmp_path / "target")

    def train(keys):
        with tf.GradientTape() as tape:
            vectors = ge.group_embedding_lookup(list(model.tables.values()), [keys, keys])
            loss = tf.add_n([tf.reduce_sum((v - 1) ** 2) for v in vectors])
        variables = list(model.tables.values())
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    # When keys are trained, saves evict some, and versions are published
    expected = {}
    for step in range(8):
        train(tf.constant([step, step + 1, 100], tf.int64))
        if step % 2:
            checkpoint.save(str(tmp_path / "checkpoint"))
        expected[publisher.publish()] = content_of(model)

    # Then versions have trained rows, and no evicted ones
    reader = reader_of(tmp_path / "target")
    for version, content in expected.items():
        assert_same(reader.read(version), content)
    assert any(len(t) < 6 for t in content[0].values())
    erased = [t["num_erased"] for v in (2, 4, 6, 8) for t in reader.verify(reader.record(v))]
    assert sum(erased) > 0


def test_a_base_comes_with_its_delta(model, random, tmp_path):
    # Given a publisher that makes a base after two deltas, and keeps one base
    target = tmp_path / "target"
    publisher = ge.serving.Publisher(model, target, base_every=2, keep_bases=1)
    reader = reader_of(target)
    publisher.publish()
    content = reader.read(1)

    # When it publishes, and a reader follows without loading the new base
    for version in range(2, 8):
        model.change(random)
        publisher.publish()
        content = reader.apply(content, reader.record(version))

        # Then both ways lead to the same content
        assert_same(content, content_of(model))
        assert_same(reader.read(version), content_of(model))
    kinds = {version: reader.record(version).kind for version in reader.versions()}
    assert kinds == {7: records.BASE}
    assert not (target / "4").exists() and (target / "7" / "saved_model.pb").exists()
    assert ge.serving.__all__  # the SavedModel is one that TensorFlow loads
    loaded = tf.saved_model.load(str(target / "7"))
    ids = {"user": [3, 5], "item": [7, 2], "page": [0, 9]}
    ids = {name: tf.constant(values, tf.int64) for name, values in ids.items()}
    served = loaded.signatures["serving_default"](**ids)["score"]
    np.testing.assert_array_equal(served, model.serve(**ids)["score"])


def test_steps_publish_in_the_background(model, random, tmp_path):
    # Given a publisher that is due at each step
    publisher = ge.serving.Publisher(model, tmp_path, every_seconds=0)
    reader = reader_of(tmp_path)

    # When steps go on while versions are written
    at_step, end = {}, time.monotonic() + 60
    for step in itertools.count():
        model.change(random)
        at_step[step] = content_of(model)
        publisher.after_step(step)
        if publisher.version > 3 or time.monotonic() > end:
            break
    publisher.close()

    # Then each version is of one step
    versions = reader.versions()
    assert len(versions) > 3 and len(at_step) > len(versions)
    for version in versions:
        assert_same(reader.read(version), at_step[reader.record(version).step])


def test_a_save_waits_for_changes_that_are_read(model, random, tmp_path):
    # Given a save and a publisher in two threads
    publisher = ge.serving.Publisher(model, tmp_path / "target")
    publisher.publish()
    checkpoint = tf.train.Checkpoint(model=model)

    # When both go on at the same time
    for _ in range(5):
        model.change(random)
        save = ge.checkpoint.BackgroundSave(checkpoint, str(tmp_path / "checkpoint"))
        publisher.publish()
        save.result()
        checkpoint.save(str(tmp_path / "checkpoint"))

    # Then both have all
    assert_same(reader_of(tmp_path / "target").read(6), content_of(model))


def test_after_a_rollback_a_base_is_asked_for(model, random, tmp_path):
    # Given versions, of which one is rolled back to
    publisher = ge.serving.Publisher(model, tmp_path)
    publisher.publish()
    first = content_of(model)
    for _ in range(2):
        model.change(random)
        publisher.publish()
    assert main(["rollback", str(tmp_path), "--by", "2"]) == 0
    reader = reader_of(tmp_path)
    assert_same(reader.read(4), first)

    # When the publisher goes on
    with pytest.raises(ge.serving.TargetError, match="version 4, a rollback; publish_base"):
        publisher.publish()
    assert publisher.publish_base() == 5
    model.change(random)
    publisher.publish()

    # Then a base comes first
    assert reader.record(5).parent == -1 and reader.record(6).base == 5
    assert_same(reader.read(6), content_of(model))


def test_one_publisher_a_target_and_the_next_begins_with_a_base(model, random, tmp_path):
    # Given a publisher
    first = ge.serving.Publisher(model, tmp_path)
    first.publish()
    model.change(random)
    first.publish()

    # When a second one comes, before and after the end of the first
    with pytest.raises(ge.serving.TargetError, match="expected no other publisher"):
        ge.serving.Publisher(model, tmp_path)
    first.close()
    with ge.serving.Publisher(model, tmp_path) as second:
        assert second.version == 0
        model.change(random)

        # Then its first version is a base of its own, with the next number
        assert second.publish() == 3
    reader = reader_of(tmp_path)
    assert reader.record(3).base == 3 and reader.record(3).parent == -1
    assert_same(reader.read(3), content_of(model))


def test_a_table_that_is_made_anew_is_published_by_a_base(model, random, tmp_path):
    publisher = ge.serving.Publisher(model, tmp_path)
    publisher.publish()

    model.users.rows.initialize()
    model.change(random)
    publisher.publish()

    reader = reader_of(tmp_path)
    assert reader.record(2).base == 2
    assert_same(reader.read(2), content_of(model))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"on_failure": "ignore"}, "expected on_failure to be 'raise' or 'keep', got 'ignore'"),
        ({"every_seconds": -1}, "expected every_seconds to be at least 0, got -1"),
        ({"base_every": 0}, "expected base_every to be at least 1, got 0"),
        ({"keep_bases": 0}, "expected keep_bases to be at least 1, got 0"),
        ({"target": "ftp://host/a"}, "expected a path or one of .*file://.*kafka://.*, got ftp://"),
    ],
)
def test_wrong_arguments(arguments, message, tmp_path):
    given = {"target": tmp_path, **arguments}
    with pytest.raises(ValueError, match=message):
        ge.serving.Publisher(tf.Module(), given.pop("target"), **given)


def test_a_base_is_written_while_training_goes_on(model, random, tmp_path, monkeypatch):
    # Given a publisher whose second version is due to be a base
    publisher = ge.serving.Publisher(model, tmp_path, every_seconds=0, base_every=1)
    publisher.publish()
    model.change(random)
    publisher.publish()
    goes_on = threading.Event()
    rewrite = version_writer.rewrite_base

    def rewrite_later(*arguments):
        goes_on.wait(60)
        rewrite(*arguments)

    monkeypatch.setattr(version_writer, "rewrite_base", rewrite_later)

    # When training goes on before the base is written
    model.change(random)
    expected = content_of(model)
    publisher.after_step()
    model.change(random)
    goes_on.set()
    publisher.close()

    # Then the base is of its instant
    assert reader_of(tmp_path).record(3).kind == records.BASE
    assert_same(reader_of(tmp_path).read(3), expected)


def test_wrong_targets_and_models(model, tmp_path):
    with pytest.raises(ge.serving.TargetError, match="expected file:///path"):
        ge.serving.Publisher(model, "file://elsewhere/folder")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        ge.serving.Publisher(model, tmp_path / "file")
    (tmp_path / "taken" / "1").mkdir(parents=True)
    with pytest.raises(ge.serving.TargetError, match="one that no publisher wrote"):
        ge.serving.Publisher(model, tmp_path / "taken").publish()
    with pytest.raises(ValueError, match="signature"):
        ge.serving.Publisher(tf.Module(), tmp_path / "empty").publish()
    with pytest.raises(ValueError, match="expected every_seconds to be set"):
        ge.serving.Publisher(model, tmp_path / "by_hand").after_step()
