"""A trainer and a mirror that run until they are killed, and the content that is published."""

import contextlib
import ctypes
import multiprocessing
import signal
import time

import numpy as np

from group_embedding.serving import TargetError, open_target
from group_embedding.serving.__main__ import main
from group_embedding.serving.mirror.mirror import Mirror
from group_embedding.serving.mirror.mirror_command import open_source
from group_embedding.serving.mirror.mirror_status import MirrorStatus
from group_embedding.serving.publish.version_writer import Content, VersionWriter
from group_embedding.serving.stores.targets import FileTarget

DELTAS = 8  # of a base


class Killed:
    """A function in a process that is killed, and starts again.

    A server of multiprocessing, which has no threads, forks the processes.
    """

    _processes = multiprocessing.get_context("forkserver")
    _processes.set_forkserver_preload(["group_embedding.serving"])

    def __init__(self, function, *arguments):
        self._call = {"target": function, "args": arguments, "daemon": True}
        self.start()

    def start(self):
        self._process = self._processes.Process(**self._call)
        self._process.start()

    def stop(self):
        self._process.kill()
        self._process.join()
        assert self._process.exitcode == -signal.SIGKILL, "it ended by itself"


def weights_at(step):
    return np.random.default_rng(step).normal(size=20_000).astype(np.float32)


def graph_at(step):
    return np.random.default_rng(step).bytes(200_000)


def train(url, scratch):
    """Publishes until it is killed; content follows from the step, which rises over restarts."""
    end_with_parent()
    while True:
        with contextlib.suppress(TargetError, OSError):
            writer = VersionWriter(open_target(url), "killed")
            while True:
                for number in range(DELTAS + 1):
                    step = time.time_ns() // 1000
                    base = None if number else new_base(scratch, step)
                    tables = {} if number else None
                    writer.write(Content(step, base, tables, {"weights": weights_at(step)}))
                    time.sleep(0.005)
        time.sleep(0.02)


def new_base(scratch, step):
    folder = scratch / f"base-{step}"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(graph_at(step))
    return str(folder)


def mirror(url, folder):
    """Copies versions until it is killed."""
    end_with_parent()
    target = FileTarget(str(folder))
    Mirror(open_source(url), target, MirrorStatus(str(folder)), keep_bases=1).run(lambda: False)


def copy(source, target):
    """The command `mirror`, again where it ends as a service is away, until it is killed."""
    end_with_parent()
    while True:
        main(["mirror", source, target])
        time.sleep(0.2)


def end_with_parent():
    """Lets the kernel kill this process when its parent ends."""
    set_signal_of_parents_death = 1
    ctypes.CDLL(None).prctl(set_signal_of_parents_death, signal.SIGKILL)
