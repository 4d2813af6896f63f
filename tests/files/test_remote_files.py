"""Files of other machines: what is written is whole, or not there."""

import os
import signal
import time

import pytest

from group_embedding.files import remote_files
from group_embedding.files.connections import FileSystemError, is_remote, local_path


@pytest.fixture(params=["s3", "gs", pytest.param("hdfs", marks=pytest.mark.slow), "memory"])
def folder(request):
    pytest.importorskip("fsspec")
    if request.param == "memory":
        return f"memory://{os.urandom(4).hex()}"
    return request.getfixturevalue(f"{request.param}_folder")


@pytest.mark.slow
def test_a_process_that_is_forked_ends(folder):
    # Given a process that has read a file system, and is forked
    remote_files.write_file(f"{folder}/a", b"one")
    assert remote_files.exists(f"{folder}/a")
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    # When the child ends, Then it does so at once
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert ended == (pid, 0)
    # And the parent still reads
    assert remote_files.exists(f"{folder}/a")


def test_files_come_and_go(folder, tmp_path):
    # Given an empty folder
    assert remote_files.files_below(folder) == {}
    assert remote_files.list_folder(folder) == []
    assert not remote_files.exists(f"{folder}/a")

    # When files of different sizes are written, one of them again
    content = os.urandom(3 << 20)
    (tmp_path / "big").write_bytes(content)
    seen = []
    remote_files.upload(str(tmp_path / "big"), f"{folder}/sub/big", seen.append)
    remote_files.write_file(f"{folder}/a", b"one")
    version = remote_files.version_of(f"{folder}/a")
    remote_files.write_file(f"{folder}/a", b"other")
    remote_files.write_file(f"{folder}/empty", b"")

    # Then they are there as they were written last
    assert remote_files.files_below(folder) == {"a": 5, "empty": 0, "sub/big": len(content)}
    assert remote_files.list_folder(folder) == ["a", "empty", "sub"]
    assert sum(seen) == len(content)
    assert remote_files.version_of(f"{folder}/a") != version
    assert remote_files.is_folder(f"{folder}/sub") and not remote_files.is_folder(f"{folder}/a")
    with remote_files.open_file(f"{folder}/sub/big") as file:
        file.seek(1_000_000)
        assert file.read(2_000_000) == content[1_000_000:3_000_000]
        assert file.read() == content[3_000_000:]
    remote_files.download(f"{folder}/sub/big", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == content

    # And they go
    remote_files.remove(f"{folder}/sub")
    remote_files.remove(f"{folder}/sub")
    assert remote_files.list_folder(folder) == ["a", "empty"]


def test_a_copy_that_fails_in_the_middle_is_not_there(folder, tmp_path):
    # Given a file that was written, and a larger one to take its place
    remote_files.write_file(f"{folder}/a", b"before")
    # The server of Google's protocol cannot cancel an upload that has begun: there, none begins.
    (tmp_path / "big").write_bytes(bytes(1 << 20 if folder.startswith("gs") else 20 << 20))

    # When its copy fails after the first pieces
    def fail(_):
        raise ZeroDivisionError("no more")

    with pytest.raises(FileSystemError, match=f"{folder}/a: no more"):
        remote_files.upload(str(tmp_path / "big"), f"{folder}/a", fail)

    # Then the file is as it was, and nothing else is there
    with remote_files.open_file(f"{folder}/a") as file:
        assert file.read() == b"before"
    assert remote_files.list_folder(folder) == ["a"]


def test_errors_name_the_url(folder):
    with pytest.raises(FileNotFoundError, match=f"{folder}/none: there is no such file"):
        remote_files.size_of(f"{folder}/none")


def test_local_files_are_no_remote_ones():
    assert local_path("file:///a/b%20c") == "/a/b c"
    assert not is_remote("/a/b") and not is_remote("file:///a") and not is_remote("C:/x")
    assert is_remote("s3://a") and is_remote("hdfs://h:1/a")
    with pytest.raises(ValueError, match="got the host 'other'"):
        local_path("file://other/a")
