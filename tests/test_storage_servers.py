"""The servers that tests of object stores and HDFS use: several processes share one, and it ends
with the last of them."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.servers.shared_server import shared_server

from group_embedding.files.connections import connect

USER = """
import sys, time
from support.servers.shared_server import shared_server
with shared_server(sys.argv[1], "test_storage_servers.Echo") as answer:
    print(answer["pid"], flush=True)
    sys.stdin.read()
"""


class Echo:
    """A server that is a sleeping process."""

    def __init__(self, folder):
        self._process = None

    def start(self):
        self._process = subprocess.Popen(["sleep", "600"])
        self.settings = {"pid": self._process.pid}

    def stop(self):
        self._process.kill()
        self._process.wait()


class Broken(Echo):
    def start(self):
        raise OSError("no port is free")

    def stop(self):
        pass


@pytest.mark.slow
def test_processes_share_a_server_until_the_last_is_killed(tmp_path):
    # Given three processes that ask for one server at the same time
    users = [_start_user(tmp_path) for _ in range(3)]
    pids = {int(user.stdout.readline()) for user in users}

    # When two are killed
    assert len(pids) == 1
    (server,) = pids
    for user in users[:2]:
        user.send_signal(signal.SIGKILL)
        user.wait()
    time.sleep(0.3)
    alive_for_the_third = _is_alive(server)

    # Then the third has its server, which ends with it; the next one has a server of its own
    assert alive_for_the_third
    users[2].kill()
    users[2].wait()
    _wait_for_end(server)
    with shared_server(tmp_path, "test_storage_servers.Echo") as answer:
        assert answer["pid"] != server
    _wait_for_end(answer["pid"])


def test_a_server_that_cannot_start_says_why(tmp_path):
    for _ in range(2):
        with (
            pytest.raises(RuntimeError, match="no port is free"),
            shared_server(tmp_path, "test_storage_servers.Broken"),
        ):
            pass


def test_files_are_written_renamed_and_read(s3_folder, hdfs_folder):
    pytest.importorskip("fsspec")
    for folder in (s3_folder, hdfs_folder):
        # Given files in a folder
        files, root = connect(folder)
        for name in ("a", "b", "sub/c"):
            files.makedirs(os.path.dirname(f"{root}/{name}"), exist_ok=True)
            files.pipe_file(f"{root}/{name}", name.encode() * 100_000)

        # When one is renamed and one is removed
        files.mv(f"{root}/a", f"{root}/d")
        files.rm(f"{root}/b")

        # Then the others are there
        files.invalidate_cache()
        assert sorted(files.find(root)) == [f"{root}/d", f"{root}/sub/c"]
        assert files.cat_file(f"{root}/d") == b"a" * 100_000


def _start_user(folder):
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_for_end(pid):
    deadline = time.monotonic() + 20
    while _is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
