"""Versions are whole, and no change is lost, where a target, a save or the publisher fails."""

import contextlib
import threading
import time

import pytest
import tensorflow as tf
from serving.serving_models import assert_same, content_of, reader_of

import group_embedding as ge
from group_embedding.checkpoint import snapshots
from group_embedding.serving.stores.targets import FileTarget
from group_embedding.serving.versions.old_versions import retire


@pytest.mark.parametrize("removals", range(5))
def test_a_publisher_that_dies_while_it_retires_leaves_whole_versions(
    removals, model, random, tmp_path, monkeypatch
):
    # Given versions of two bases, the first of which is to go
    folder = tmp_path / "target"
    publisher = ge.serving.Publisher(model, folder, base_every=3, keep_bases=9)
    for _ in range(5):
        model.change(random)
        publisher.publish()
    publisher.close()

    # When the process ends after some removals
    target, left = FileTarget(str(folder)), iter(range(removals))
    remove = target.remove
    monkeypatch.setattr(target, "remove", lambda version: (next(left), remove(version)))
    with contextlib.suppress(StopIteration):
        retire(target, keep_bases=1)

    # Then all versions that are there can be read, and are as many as were left
    reader = reader_of(folder)
    for version in reader.versions():
        reader.read(version)
    assert len(reader.versions()) == 5 - removals


@pytest.mark.parametrize("failing", ["put", "commit", "newest"])
def test_what_a_failed_publish_had_is_in_the_next(failing, model, random, tmp_path, monkeypatch):
    # Given publishers whose target fails now and then
    raising = ge.serving.Publisher(model, tmp_path / "raising")
    keeping = ge.serving.Publisher(model, tmp_path / "keeping", on_failure="keep")
    for publisher in (raising, keeping):
        publisher.publish()
    works = getattr(FileTarget, failing)

    def fails(*_):
        raise OSError("disk full")

    # When it fails, twice, and then works again
    for step in range(2):
        model.change(random)
        monkeypatch.setattr(FileTarget, failing, fails)
        with pytest.raises(OSError, match="disk full"):
            raising.publish()
        with pytest.warns(UserWarning, match="disk full"):
            assert keeping.publish() == 1 + step
        monkeypatch.setattr(FileTarget, failing, works)
        model.change(random, 5)

        # Then the next version has everything, and nothing was queued
        for publisher, folder in ((raising, "raising"), (keeping, "keeping")):
            assert publisher.publish() == 2 + step
            assert_same(reader_of(tmp_path / folder).read(2 + step), content_of(model))


def test_a_commit_that_is_told_late_counts(model, random, tmp_path, monkeypatch):
    # Given a target that fails just after it has committed
    publisher = ge.serving.Publisher(model, tmp_path)
    publisher.publish()
    commits = FileTarget.commit

    def commits_and_fails(*arguments):
        commits(*arguments)
        raise OSError("the answer was lost")

    for change in range(3):
        model.change(random)
        former = model.pages[3].numpy()
        monkeypatch.setattr(FileTarget, "commit", commits_and_fails)
        with pytest.raises(OSError, match="lost"):
            publisher.publish()
        monkeypatch.setattr(FileTarget, "commit", commits)

        # When a row goes back to what it was before that version
        model.pages.scatter_nd_update([[3]], former[None] + change % 2)
        version = publisher.publish()

        # Then the version that was committed is followed by one that is right
        assert version == 3 + 2 * change
        assert_same(reader_of(tmp_path).read(version), content_of(model))


@pytest.mark.slow
@pytest.mark.parametrize("on_failure", ["raise", "keep"])
def test_a_target_that_hangs_does_not_stop_training(
    on_failure, model, random, tmp_path, monkeypatch
):
    # Given a target that does not answer
    publisher = ge.serving.Publisher(
        model, tmp_path, on_failure=on_failure, timeout=0.5, every_seconds=0
    )
    publisher.publish()
    answers = threading.Event()
    put = FileTarget.put

    def put_when_it_answers(*arguments):
        answers.wait(60)
        put(*arguments)

    monkeypatch.setattr(FileTarget, "put", put_when_it_answers)
    model.change(random)

    # When training goes on, and steps publish
    begin, told = time.monotonic(), 0
    while time.monotonic() < begin + 2 and told < 2:
        before = time.monotonic()
        try:
            with (
                pytest.warns(UserWarning, match="within 0.5 s")
                if on_failure == "keep"
                else (pytest.raises(ge.serving.TargetError, match="within 0.5 s"))
            ):
                publisher.after_step()
            told += 1
        except pytest.fail.Exception:
            pass
        assert time.monotonic() - before < 0.4
        time.sleep(0.01)

    # Then it raises, the version before stays, and all is published once the target answers
    assert told == 2 and publisher.version == 1
    answers.set()
    publisher._work.delivery.ends_within(30)
    model.change(random)
    assert publisher.publish() == 3
    assert_same(reader_of(tmp_path).read(3), content_of(model))


def test_a_save_that_failed_holds_nobody_up(model, random, tmp_path):
    # Given a snapshot of a save that was never written, and a publisher
    publisher = ge.serving.Publisher(model, tmp_path, timeout=1)
    publisher.publish()
    tables = [table.rows for table in model.tables.values()]
    snapshots.take_snapshots(tables, changes=False)
    model.change(random)

    # When it publishes
    version = publisher.publish()

    # Then it has dropped the snapshot, and the next save works
    assert version == 2
    assert_same(reader_of(tmp_path).read(2), content_of(model))
    tf.train.Checkpoint(model=model).write(str(tmp_path / "saved" / "model"))
