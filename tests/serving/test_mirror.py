"""Mirrors of folders: killed, refused, told by their status; that of stores is in stores/."""

import contextlib
import os
import time

import pytest
from support.cases.written_versions import Writer, bytes_of
from support.programs.killed_replicas import Killed, mirror

from group_embedding.serving import TargetError
from group_embedding.serving.__main__ import main
from group_embedding.serving.mirror.mirror import Mirror
from group_embedding.serving.mirror.mirror_status import MirrorStatus
from group_embedding.serving.stores.folder import Folder
from group_embedding.serving.stores.targets import FileTarget
from group_embedding.serving.versions.deltas import NotConsecutive


@pytest.fixture
def writer(tmp_path):
    """Writes versions to the folder "source"."""
    return Writer(str(tmp_path / "source"), tmp_path)


@pytest.fixture
def make(tmp_path):
    """Makes a mirror of the folder "source"."""

    def mirror(name="mirror", **options):
        folder = str(tmp_path / name)
        return Mirror(
            Folder(str(tmp_path / "source")), FileTarget(folder), MirrorStatus(folder), **options
        )

    return mirror


def status_of(folder):
    """(whether the source is up, the message) as servers read it."""
    _, state, message = (folder / "SOURCE").read_text().split("\n")[:3]
    return state == "up", message


def run_for(mirror, seconds):
    end = time.monotonic() + seconds
    mirror.run(lambda: time.monotonic() > end)


def test_versions_before_the_newest_bases_are_removed(writer, make, tmp_path):
    # Given a mirror that keeps one base
    mirror = make(keep_bases=1)

    # When there are three bases with a delta each
    for _ in range(3):
        writer.base()
        mirror.follow()
        writer.delta()
        mirror.follow()

    # Then the newest and its delta stay, and nothing of the others
    target = FileTarget(str(tmp_path / "mirror"))
    assert target.versions() == [5, 6]
    assert sorted(os.listdir(tmp_path / "mirror" / "versions")) == [f"{v:020}" for v in (5, 6)]
    assert not (tmp_path / "mirror" / "3").exists()


def test_a_damaged_version_is_refused_until_a_base_comes(writer, make, tmp_path):
    # Given a mirror at version 2, and a third version with a changed byte
    writer.base()
    writer.delta()
    mirror = make()
    mirror.follow()
    (file,) = writer.delta().files
    path = tmp_path / "source" / "versions" / f"{3:020}" / file.path
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)

    # When it is followed, and another delta comes
    with pytest.raises(NotConsecutive, match=f"{path.name}' is damaged"):
        mirror.follow()
    writer.delta()
    with pytest.raises(NotConsecutive, match="is damaged"):
        mirror.follow()

    # Then version 2 stays, and the next base leads on
    assert mirror.version == 2 and FileTarget(str(tmp_path / "mirror")).versions() == [1, 2]
    run_for(mirror, 0.1)
    is_up, message = status_of(tmp_path / "mirror")
    assert is_up and "is damaged" in message
    writer.base()
    assert mirror.follow() == 5


def test_a_source_that_is_away_is_told_and_followed_once_it_is_back(writer, make, tmp_path, capfd):
    # Given a mirror at version 1
    writer.base()
    mirror = make()
    mirror.follow()

    # When the source is away for a while
    (tmp_path / "source").rename(tmp_path / "away")
    run_for(mirror, 0.3)
    away = status_of(tmp_path / "mirror")
    (tmp_path / "away").rename(tmp_path / "source")
    writer.delta()
    run_for(mirror, 0.5)

    # Then its status said so, and no longer does
    assert away[0] is False and "expected a folder, there is none" in away[1]
    assert status_of(tmp_path / "mirror") == (True, "")
    assert mirror.version == 2
    errors = capfd.readouterr().err
    assert errors.count("there is none") == 1 and errors.count("the source is back") == 1


def test_two_mirrors_do_not_write_one_folder(writer, make):
    first = make()
    with pytest.raises(TargetError, match="expected no other publisher"):
        make()
    del first


def test_a_mirror_that_is_killed_goes_on(writer, make, tmp_path):
    # Given a source whose base takes a while to copy
    writer.base(num_files=20, size=400_000)
    for _ in range(5):
        writer.delta()

    # When mirrors are killed while they copy, each at another instant
    for number in range(3):
        process = Killed(mirror, str(tmp_path / "source"), tmp_path / "mirror")
        wait_for_work(tmp_path / "mirror", number)
        process.stop()

    # Then the next one has it all, and nothing of theirs is left
    assert make().follow() == 6
    target = FileTarget(str(tmp_path / "mirror"))
    for version in range(1, 7):
        assert bytes_of(target, version) == bytes_of(writer.target, version)
    assert [name for name in os.listdir(tmp_path / "mirror") if name.startswith(".")] == []


def wait_for_work(folder, number):
    """Waits until a mirror has copied a few files of the base, or made versions exist."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        there = len(FileTarget(str(folder)).versions())
        with contextlib.suppress(FileNotFoundError):  # the mirror moves them
            copied = len(list(folder.glob(".export-*/base/variables/*")))
            if there if number == 2 else copied > 3 * number:
                return
    raise AssertionError("the mirror copies nothing")


def test_one_copy_by_command_goes_to_any_target(writer, tmp_path):
    # Given a source with two versions
    writer.base()
    writer.delta()

    # When the command copies them once
    status = main(["mirror", "--once", writer.target.url, f"file://{tmp_path / 'mirror'}"])

    # Then both are there; and a source that is away is one sentence
    assert status == 0 and FileTarget(str(tmp_path / "mirror")).versions() == [1, 2]
    assert main(["mirror", "--once", str(tmp_path / "nothing"), str(tmp_path / "other")]) == 1
