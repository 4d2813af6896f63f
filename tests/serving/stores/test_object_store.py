"""Object stores: hints that are wrong, leftovers, versions that go, a store that is away."""

import os
import time

import pytest
from support.cases.written_versions import Writer, bytes_of
from support.servers.loopback import free_port

pytest.importorskip("fsspec")

from group_embedding.files import remote_files  # noqa: E402
from group_embedding.files.connections import set_options  # noqa: E402
from group_embedding.serving import TargetError, open_target  # noqa: E402
from group_embedding.serving.mirror.mirror import Mirror  # noqa: E402
from group_embedding.serving.stores.object_store import ObjectStore  # noqa: E402
from group_embedding.serving.stores.remote_target import RemoteTarget  # noqa: E402
from group_embedding.serving.stores.targets import FileTarget  # noqa: E402


@pytest.fixture
def folder():
    """The URL of an empty folder in this process's memory."""
    return f"memory://{os.urandom(4).hex()}"


@pytest.fixture
def writer(folder, tmp_path, monkeypatch):
    """A writer of that folder."""
    monkeypatch.setattr(
        "support.cases.written_versions.open_target", lambda url: RemoteTarget(ObjectStore(url))
    )
    return Writer(folder, tmp_path)


@pytest.mark.parametrize("hint", [None, b"", b"many", b"1\n"])
def test_the_hint_is_a_hint(folder, writer, tmp_path, hint):
    # Given three versions, and a LATEST that is missing, damaged or too low
    writer.base()
    writer.delta()
    writer.delta()
    remote_files.remove(f"{folder}/LATEST")
    if hint is not None:
        remote_files.write_file(f"{folder}/LATEST", hint)

    # When the newest version is looked for, Then it is found, by readers and the publisher
    assert ObjectStore(folder).newest() == 3
    assert writer.delta().version == 4
    target = FileTarget(str(tmp_path / "mirror"))
    assert Mirror(ObjectStore(folder), target).follow() == 4
    assert bytes_of(target, 4) == bytes_of(writer.target, 4)


def test_the_layout_is_that_of_a_folder(folder, writer):
    # Given a base and a delta
    base = writer.base(num_files=2)
    (file,) = writer.delta().files

    # When the store is listed, Then each is where readers look for it
    base_folder = f"1-{base.base_id:016x}"
    assert set(remote_files.files_below(folder)) == {
        f"{base_folder}/assets.extra/version",
        f"{base_folder}/saved_model.pb",
        f"{base_folder}/variables/0",
        f"{base_folder}/variables/1",
        f"versions/{1:020}/COMMIT",
        f"versions/{2:020}/COMMIT",
        f"versions/{2:020}/{file.path}",
        "LATEST",
    }


def test_a_version_that_is_removed_leaves_nothing(folder, writer):
    # Given two bases, and a file of an attempt that failed
    for _ in range(2):
        writer.base()
    remote_files.write_file(f"{folder}/versions/{1:020}/variables-of-an-attempt", b"left")

    # When the first is removed, Then none of its files is there
    writer.target.remove(1)
    left = remote_files.files_below(folder)
    assert writer.target.versions() == [2]
    assert not [path for path in left if path.startswith(("1-", f"versions/{1:020}"))]


def test_a_store_that_was_emptied_is_noticed(folder, writer, tmp_path):
    # Given a publisher and a mirror at version 2
    writer.base()
    writer.delta()
    mirror = Mirror(ObjectStore(folder), FileTarget(str(tmp_path / "mirror")))
    mirror.follow()

    # When somebody removes everything
    remote_files.remove(folder)
    with pytest.raises(TargetError, match="expected version 2, which it had acknowledged, got 0"):
        writer.delta()

    # Then the next base is version 3, and the mirror follows
    assert writer.base().version == 3
    assert mirror.follow() == 3


def test_a_store_that_is_away_is_named_in_time():
    # Given an end point on which nobody listens
    bucket = f"s3://{os.urandom(4).hex()}"
    end_point = f"http://127.0.0.1:{free_port()}"
    set_options(bucket, {"endpoint_url": end_point, "key": "a", "secret": "b"})

    # When a publisher starts, Then the error names the URL
    begin = time.monotonic()
    with pytest.raises((TargetError, OSError), match=f"{bucket}/models"):
        open_target(f"{bucket}/models").lock()
    assert time.monotonic() - begin < 6


def test_a_url_without_a_bucket_is_refused():
    with pytest.raises(ValueError, match="expected a bucket or host"):
        open_target("s3://")
