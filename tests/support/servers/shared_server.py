"""Servers that all processes of a test session share.

The first process that asks starts a supervisor, which starts the server and stops it when no
process uses it any more, also if tests were killed. Whoever uses the server holds a shared lock of
the file `in_use` in the server's folder: the supervisor may lock it alone only when nobody does.
"""

import contextlib
import fcntl
import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

SECONDS = 180  # until a server has started, on a busy machine
_SUPERVISE = "from support.servers import shared_server; shared_server.supervise()"


class ServerMissing(Exception):
    """The server is not installed; the message says how it is."""


@contextlib.contextmanager
def shared_server(folder, name):
    """A dict with what the server tells its clients; skips the test if it is not installed.

    Args:
        folder: a path, the same in all processes that share the server; it is created.
        name: "module.Class" of the server. Its objects are made with the folder and have `start()`,
            which raises ServerMissing, then `settings`, a dict, and `stop()`.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "in_use", "a") as in_use:
        fcntl.flock(in_use, fcntl.LOCK_SH)
        with open(folder / "starting", "a") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            if not (folder / "answer.json").exists():
                _supervise(folder, name)
            answer = json.loads((folder / "answer.json").read_text())
        if "missing" in answer:
            pytest.skip(answer["missing"])
        if "failed" in answer:
            raise RuntimeError(f"{name} did not start: {answer['failed']}")
        yield answer


def ending_with_parent(command):
    """A command whose process is killed when the thread that starts it ends. (A `preexec_fn` may
    wait for ever in a process that has threads, as one with TensorFlow has.)"""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else list(command)


def _supervise(folder, name):
    with open(folder / "supervisor.log", "a") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _SUPERVISE, str(folder), name],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + SECONDS
    while not (folder / "answer.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"{name} did not start: see {folder}/supervisor.log")
        time.sleep(0.05)


def supervise():
    """The supervisor, a program: starts the server, and stops it when no process uses it."""
    folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    module, kind = name.rsplit(".", 1)
    server = getattr(importlib.import_module(module), kind)(folder)
    answer = folder / "answer.json"
    try:
        try:
            server.start()
            found = server.settings
        except ServerMissing as error:
            found = {"missing": str(error)}
        except Exception as error:
            found = {"failed": repr(error)}
        (folder / "answer.new").write_text(json.dumps(found))
        os.replace(folder / "answer.new", answer)
        with open(folder / "in_use", "a") as in_use:
            fcntl.flock(in_use, fcntl.LOCK_EX)  # waits for all users to end
            answer.unlink()
            server.stop()
    finally:
        server.stop()
