"""`Leftovers` finds the processes, ports, files and folders that a run of the tests leaves behind.

All processes that tests start inherit RUN from the environment, and TMPDIR, a folder of the run
alone. So other programs of the machine are never taken for a test's.
"""

import contextlib
import gc
import multiprocessing.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from support.session import stacks

RUN = "GROUP_EMBEDDING_TEST_RUN"
SHARED_MEMORY = Path("/dev/shm")
_GRACE = 5  # seconds for processes that are about to end
# Processes that end with the one that started them.
_ITS_SERVERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
_BEHIND_MULTIPROCESSING = -200  # which removes its own folder at -100
# What AutoGraph leaves behind, and folders of servers that tests kill: they cannot remove them.
_NOT_OF_TESTS = (
    "__autograph_generated_file", "ge-base-", "ge-mirrors-", "ge-versions-", stacks.PREFIX,
)  # fmt: skip


class Leftovers:
    """One object for a run, made before its first process and its first file."""

    def __init__(self, checkout):
        self._checkout = checkout
        self._run = os.environ[RUN] = uuid.uuid4().hex
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # of `tmp_path`
        self._folder = Path(tempfile.mkdtemp(prefix="ge-"))  # short, as paths of sockets are
        os.environ["TMPDIR"] = str(self._folder)
        tempfile.tempdir = None  # read the environment again
        self._shared_memory = set(SHARED_MEMORY.iterdir())
        self._untracked = self._untracked_files()

    def find(self):
        """A line for each leftover. Ends the processes and removes the folder of the run, at the
        end of this process: where it ran the tests itself, it may still use a part."""
        gc.collect()  # tables that no test has any more
        processes = self._processes()
        deadline = time.monotonic() + _GRACE
        while processes and time.monotonic() < deadline:
            time.sleep(0.1)
            processes = self._processes()
        ports = listening_ports(processes)
        found = [
            f"process {pid}{f', port {ports[pid]}' if pid in ports else ''}: {command}"
            for pid, command in processes.items()
        ]
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        used = self._used_here()
        left = (
            path
            for path in self._folder.iterdir()
            if path not in used and not path.name.startswith(_NOT_OF_TESTS)
        )
        found += [f"file {path}" for path in sorted(left)]
        found += [f"shared memory {path}" for path in sorted(self._new_shared_memory())]
        found += [
            f"file of the checkout {path}"
            for path in sorted(self._untracked_files() - self._untracked)
        ]
        multiprocessing.util.Finalize(
            None,
            shutil.rmtree,
            args=[self._folder],
            kwargs={"ignore_errors": True},
            exitpriority=_BEHIND_MULTIPROCESSING,
        )
        return found

    def _used_here(self):
        """Files and folders of the run that this process has until it ends: those with an open
        file, as of tables that TensorFlow keeps, and the folder of multiprocessing."""
        paths = [multiprocessing.current_process()._config.get("tempdir") or ""]
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                paths.append(os.readlink(link))
        beginning = f"{self._folder}/"
        return {
            self._folder / path[len(beginning) :].partition("/")[0]
            for path in paths
            if path.startswith(beginning)
        }

    def _processes(self):
        """{process: its command line} of this run, but for this process and its like."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            pid = int(folder.name)
            if pid == os.getpid():
                continue
            try:
                environment = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended, or is another user's
                continue
            if parent == os.getpid() and any(server in command for server in _ITS_SERVERS):
                continue
            if f"{RUN}={self._run}".encode() in environment.split(b"\0") and command:
                found[pid] = command[:200]
        return found

    def _new_shared_memory(self):
        mine = os.getuid()
        new = set(SHARED_MEMORY.iterdir()) - self._shared_memory
        return [
            path
            for path in new
            if path.name.startswith("group_embedding_") and path.stat().st_uid == mine
        ]

    def _untracked_files(self):
        command = ["git", "-C", self._checkout, "status", "--porcelain", "--untracked-files=all"]
        try:
            lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):  # not a checkout
            return set()
        return {line[3:] for line in lines.splitlines() if line.startswith("??")}


def listening_ports(processes):
    """{process: a TCP port that it listens on}."""
    port_of = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A":
                port_of[columns[9]] = int(columns[1].rpartition(":")[2], 16)
    found = {}
    for pid in processes:
        try:
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        for link in links:
            if link.startswith("socket:[") and link[8:-1] in port_of:
                found[pid] = port_of[link[8:-1]]
    return found
