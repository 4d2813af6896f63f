"""Ranks that start fast: copies of one process that has imported TensorFlow.

Horovod's rendezvous server is started by hand, and each rank finds in its environment what
`horovodrun` would have put there.
"""

import collections
import contextlib
import json
import os
import pickle
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from group_embedding import testing

_STARTER = Path(__file__).with_name("starter.py")
_RENDEZVOUS = """
import sys
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

server = RendezvousServer()
print(server.start(), flush=True)
server.init(get_host_assignments(parse_hosts(sys.argv[1]), int(sys.argv[2])))
sys.stdin.read()
"""

Outcome = collections.namedtuple("Outcome", ["code", "result", "output"])
Outcome.__doc__ = """How a rank ended.

Attributes: `code`, its exit code, minus the signal that ended it, or "timed out"; `result`, what
its function returned, or None; `output`, all that it printed.
"""


class Starter:
    """A process that has imported TensorFlow, and starts the ranks of all jobs."""

    def __init__(self):
        root = str(_STARTER.parents[3])
        path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        # Several ranks share the cores of one machine.
        environment.setdefault("TF_NUM_INTRAOP_THREADS", "1")
        environment["CUDA_VISIBLE_DEVICES"] = ""  # CUDA cannot be used in a copy of a process
        self._process = subprocess.Popen(
            [sys.executable, str(_STARTER)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline() == "ok\n", "the starter of ranks has failed"

    def start(self, **request):
        print(json.dumps(request), file=self._process.stdin, flush=True)

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Job:
    """A function that several ranks call.

    Args:
        starter: a `Starter`.
        where: the name of the host of each rank, rank 0 first; ranks of a host are neighbours.
        folder: an empty one, which all hosts share.
        function: at the top level of a module, which each rank loads from its file.
        args: picklable; the same on all ranks.
        timeout: seconds after which ranks that have not ended are killed.
        environment: variables beside those of Horovod's launcher, or in their place.
    """

    def __init__(self, starter, where, folder, function, args, timeout, environment=()):
        self._folder, self._timeout = Path(folder), timeout
        self._deadline = time.monotonic() + timeout
        self._num_ranks = len(where)
        self._folder.mkdir(parents=True)
        call = {
            "file": str(Path(function.__code__.co_filename).resolve()),
            "function": function.__qualname__,
            "args": args,
        }
        (self._folder / "call").write_bytes(pickle.dumps(call))
        self._rendezvous = self._start_rendezvous(where)
        port = self._rendezvous.stdout.readline().strip()
        for rank, name in enumerate(where):
            of_launcher = _environment_of(rank, where, self._address_of(where[0]), port)
            starter.start(
                host=self._process_of(name),
                environment={
                    **os.environ,
                    **of_launcher,
                    **self._variables(),
                    **dict(environment),
                    "CUDA_VISIBLE_DEVICES": "",
                },
                folder=str(self._folder),
                rank=rank,
                timeout=timeout,
            )

    # A subclass whose ranks are on several hosts overrides these.

    def _start_on(self, name, command, **pipes):
        return subprocess.Popen(command, **pipes)

    def _address_of(self, name):
        return "127.0.0.1"

    def _process_of(self, name):
        return None

    def _variables(self):
        """Idle ranks of this machine wake less often than by default, each 10 ms."""
        return {"HOROVOD_GLOO_IFACE": "lo", "HOROVOD_CYCLE_TIME": "10"}

    def _start_rendezvous(self, where):
        slots = ",".join(f"{name}:{where.count(name)}" for name in dict.fromkeys(where))
        return self._start_on(
            where[0],
            [sys.executable, "-c", _RENDEZVOUS, slots, str(len(where))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def output(self, rank):
        """All that a rank has printed so far."""
        file = self._folder / f"output_{rank}"
        return file.read_text(errors="replace") if file.exists() else ""

    def wait_until_all_said(self, text):
        """Waits until the output of each rank has a text."""
        while not all(text in self.output(rank) for rank in range(self._num_ranks)):
            assert time.monotonic() < self._deadline and not self._codes(), self.all_output()
            time.sleep(0.02)

    def outcomes(self):
        """Waits until all ranks have ended. Returns the `Outcome` of each, rank 0 first."""
        while len(self._codes()) < self._num_ranks:
            # They are killed in time; this is for a bed that has broken down.
            assert time.monotonic() < self._deadline + 10, self.all_output()
            time.sleep(0.02)
        self.close()
        return [
            Outcome(code, self._result(rank), self.output(rank))
            for rank, code in sorted(self._codes().items())
        ]

    def results(self):
        """Waits until all ranks have ended. Returns what each returned, rank 0 first.

        Raises:
            AssertionError: one of them ended otherwise than well; with what all of them printed.
        """
        outcomes = self.outcomes()
        assert all(outcome.code == 0 for outcome in outcomes), self.all_output()
        return [outcome.result for outcome in outcomes]

    def has_ended(self):
        """True when all ranks have ended."""
        return len(self._codes()) == self._num_ranks

    def any_has_ended(self):
        return bool(self._codes())

    def end(self, grace):
        """Waits, and kills ranks that have not ended after `grace` seconds."""
        deadline = time.monotonic() + grace
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        ended = self._codes()
        for rank in {*range(self._num_ranks)} - {*ended}:
            process = self._folder / f"process_{rank}"
            if process.exists():
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(int(process.read_text()), signal.SIGKILL)
        self.close()

    def close(self):
        """Ends the rendezvous server. Ranks that have not ended do so with their hosts."""
        if self._rendezvous.stdin.closed:
            return
        self._rendezvous.stdin.close()
        self._rendezvous.wait()
        self._rendezvous.stdout.close()

    def _codes(self):
        codes = {}
        for rank in range(self._num_ranks):
            file = self._folder / f"code_{rank}"
            if file.exists():
                code = file.read_text()
                codes[rank] = code if code == "timed out" else int(code)
        return codes

    def _result(self, rank):
        file = self._folder / f"result_{rank}"
        return pickle.loads(file.read_bytes()) if file.exists() else None

    def all_output(self):
        codes = self._codes()
        return "\n".join(
            f"rank {rank}, code {codes.get(rank)}:\n{self.output(rank)}"
            for rank in range(self._num_ranks)
        )


def _environment_of(rank, where, address, port):
    """The variables that a launcher gives to a rank."""
    hosts = list(dict.fromkeys(where))
    name = where[rank]
    variables = {
        "RANK": rank,
        "SIZE": len(where),
        "LOCAL_RANK": where[:rank].count(name),
        "LOCAL_SIZE": where.count(name),
        "CROSS_RANK": hosts.index(name),
        "CROSS_SIZE": len(hosts),
        "HOSTNAME": name,
        "GLOO_RENDEZVOUS_ADDR": address,
        "GLOO_RENDEZVOUS_PORT": port,
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    return {f"HOROVOD_{key}": str(value) for key, value in variables.items()}


def run_script(*command):
    """Runs a script in a rank: `command` is its path and its arguments."""
    sys.argv = list(map(str, command))
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


class Ranks(testing.Ranks):
    """`group_embedding.testing.Ranks`, without horovodrun, and without an import of TensorFlow by
    each rank. CUDA cannot be used in them."""

    def __init__(self, starter, num_ranks):
        super().__init__(num_ranks)
        self._starter = starter

    def close(self):
        if self._job is None:
            return ""
        (self._folder / "close").touch()
        self._job.job.end(grace=10)
        output = self._job.job.all_output()
        self._temporary.cleanup()
        self._job = None
        return output

    def _start(self):
        self._temporary = tempfile.TemporaryDirectory()
        self._folder = Path(self._temporary.name)
        self._num_calls = 0
        self._job = _Running(self._make_job(self._folder))

    def _make_job(self, folder):
        arguments = folder, os.getpid()
        where = ["localhost"] * self.num_ranks
        return Job(self._starter, where, folder / "job", testing._serve, arguments, timeout=86400)


class _Running:
    """A `Job` in the place of a process: `poll` is None while no rank has ended."""

    def __init__(self, job):
        self.job = job

    def poll(self):
        return 1 if self.job.any_has_ended() else None
