"""Mirrors beside a server: one process for each source that is not a folder."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

from group_embedding.serving.mirror.mirror import Mirror
from group_embedding.serving.mirror.mirror_command import open_source
from group_embedding.serving.mirror.mirror_status import MirrorStatus
from group_embedding.serving.server.child_process import run_in_child
from group_embedding.serving.server.server_arguments import arguments_of, pairs_of
from group_embedding.serving.stores.open_target import is_local
from group_embedding.serving.stores.targets import FileTarget

_POLL_SECONDS = "0.05"  # of the server: a look into a folder costs little
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds, before a mirror starts again
_FETCH_SECONDS = 10.0  # before a server starts with the version that it has
_LONG_LIFE = 60.0  # seconds: a mirror that lived so long starts again after the first pause


class MirroredSource(NamedTuple):
    """A source and the folder that its mirror fills."""

    url: str
    name: str  # the URL without password and options
    folder: str


def are_in(arguments: Sequence[str]) -> bool:
    """Returns whether a `--source` in the arguments of a server is not a folder."""
    return any(name == "--source" and not is_local(value) for name, value in pairs_of(arguments))


def with_folders(arguments: Sequence[str]) -> tuple[list[str], list[MirroredSource], str]:
    """Gives each source that is not a folder a mirror's folder.

    Args:
        arguments: Of `ge-serve`, with a `--source` of any scheme.

    Returns:
        The arguments with folders in place of these sources, the sources, and a temporary folder
        that has the mirrors' folders; "": they lie below `--state`.

    Raises:
        ValueError, ImportError: As `open_store`.
    """
    pairs = pairs_of(arguments)
    state = next((value for name, value in pairs if name == "--state"), "")
    if not are_in(arguments):
        return list(arguments), [], ""
    temporary = "" if state else tempfile.mkdtemp(prefix="ge-mirrors-")
    changed, sources, model = [], [], ""
    for name, value in pairs:
        if name == "--model":
            model = value.partition("=")[0]
        if name == "--source" and not is_local(value):
            folder = os.path.abspath(os.path.join(state or temporary, f"{model}.mirror"))
            os.makedirs(os.path.join(folder, "versions"), exist_ok=True)
            sources.append(MirroredSource(value, open_source(value).url, folder))
            value = f"file://{folder}"
        changed.append((name, value))
    if not any(name == "--poll-seconds" for name, _ in pairs):
        changed.append(("--poll-seconds", _POLL_SECONDS))
    return arguments_of(changed), sources, temporary


def fetch(sources: Sequence[MirroredSource]) -> bool:
    """Brings each mirror to its source's newest version, before a server starts.

    Where all mirrors have a version, a server does not wait longer than a few seconds for the
    newest: it starts with what is there, and follows.

    Returns:
        Whether each source has answered, or an earlier mirror left a version of it. What is wrong
        is on stderr.
    """
    pid = run_in_child(lambda: not [one for one in sources if not _is_fetched(one)])
    late = time.monotonic() + _FETCH_SECONDS
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        time.sleep(0.02)
        if time.monotonic() > late and all(map(_has_version, sources)):
            os.kill(pid, signal.SIGKILL)  # it may be killed at any moment
            os.waitpid(pid, 0)
            for source in sources:
                late_mirror = f"no newest version of {source.name} within {_FETCH_SECONDS:g} s"
                MirrorStatus(source.folder).tell(False, late_mirror)
            return True
    return os.waitstatus_to_exitcode(ended[1]) == 0


def _has_version(source):
    return FileTarget(source.folder).newest() > 0


def start(sources: Sequence[MirroredSource], temporary: Sequence[str]) -> None:
    """Starts a process that keeps the mirrors running until this process, or what it becomes by
    `exec`, has ended, however it does.

    Args:
        sources: What is mirrored.
        temporary: Folders to remove at the end.
    """
    ended, held = os.pipe()  # a read from `ended` returns once nobody has `held`
    os.set_inheritable(held, True)
    if os.fork() != 0:
        os.close(ended)
        return
    os.close(held)
    os.setsid()  # a terminal's Ctrl+C is the server's
    status = 1
    try:
        _keep_running(sources, ended)
        status = 0
    finally:
        for folder in temporary:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(status)


def _keep_running(sources, ended):
    """Starts mirrors, and starts again those that end, until `ended` is closed."""
    running: dict[int, MirroredSource] = {}
    due = dict.fromkeys(sources, 0.0)  # when it starts
    began = dict(due)
    pause = dict.fromkeys(sources, _FIRST_PAUSE)
    while True:
        now = time.monotonic()
        for source in [source for source, when in due.items() if when <= now]:
            del due[source]
            began[source] = now
            running[_fork(source, ended)] = source
        if select.select([ended], [], [], 0.1)[0]:
            break
        for pid in list(running):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found == 0:
                continue
            source = running.pop(pid)
            how = os.waitstatus_to_exitcode(status)
            MirrorStatus(source.folder).tell(
                False, f"the mirror of {source.name} ended with status {how}"
            )
            if time.monotonic() - began[source] > _LONG_LIFE:
                pause[source] = _FIRST_PAUSE
            due[source] = time.monotonic() + pause[source]
            pause[source] = min(2 * pause[source], _LONGEST_PAUSE)
    for pid in running:
        os.kill(pid, signal.SIGKILL)  # it may be killed at any moment
    for pid in running:
        os.waitpid(pid, 0)


def _fork(source, ended):
    """Starts the process of a mirror, which ends with this one; returns its id."""
    parent = os.getpid()
    pid = os.fork()
    if pid != 0:
        return pid
    status = 1
    try:
        os.close(ended)
        _mirror(source).run(lambda: os.getppid() != parent)
        status = 0
    except Exception as error:
        print(f"group_embedding: mirror of {source.name}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _mirror(source):
    return Mirror(open_source(source.url), FileTarget(source.folder), MirrorStatus(source.folder))


def _is_fetched(source):
    store = open_source(source.url)
    try:
        store.connect()
        _mirror(source).follow()
        return True
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        MirrorStatus(source.folder).tell(False, str(error))
        return _has_version(source)
