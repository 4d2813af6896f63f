"""`Job`: a function that ranks on the hosts of a bed call, one process each.

Horovod's rendezvous server runs on the host of rank 0, started by hand, and each rank finds in its
environment what `horovodrun` would have put there.
"""

import collections
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
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
        path = [str(_TESTS.parent), str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        # Of several ranks on the cores of one machine.
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

    def start(self, **told):
        print(json.dumps(told), file=self._process.stdin, flush=True)

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Job:
    """A function that several ranks call, each on its host.

    Args:
        starter: a `Starter`.
        bed: a `Bed`.
        where: the name of the host of each rank, rank 0 first; ranks of a host are neighbours.
        folder: an empty one, which all hosts share.
        function: at the top level of a module, which each rank loads from its file.
        args: picklable; the same on all ranks.
        timeout: seconds after which ranks that have not ended are killed.
        environment: variables beside those of Horovod's launcher, or in their place.
    """

    def __init__(self, starter, bed, where, folder, function, args, timeout, environment):
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
        self._rendezvous = self._start_rendezvous(bed, where)
        port = self._rendezvous.stdout.readline().strip()
        for rank, name in enumerate(where):
            of_launcher = _environment_of(rank, where, bed.hosts[where[0]].address, port)
            starter.start(
                host=bed.hosts[name].pid,
                environment={**of_launcher, **environment},
                folder=str(self._folder),
                rank=rank,
                timeout=timeout,
            )

    def _start_rendezvous(self, bed, where):
        slots = ",".join(f"{name}:{where.count(name)}" for name in dict.fromkeys(where))
        return bed.hosts[where[0]].start(
            [sys.executable, "-c", _RENDEZVOUS, slots, len(where)],
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
            assert time.monotonic() < self._deadline and not self._codes(), self._all_output()
            time.sleep(0.02)

    def outcomes(self):
        """Waits until all ranks have ended. Returns the `Outcome` of each, rank 0 first."""
        while len(self._codes()) < self._num_ranks:
            # They are killed in time; this is for a bed that has broken down.
            assert time.monotonic() < self._deadline + 10, self._all_output()
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
        assert all(outcome.code == 0 for outcome in outcomes), self._all_output()
        return [outcome.result for outcome in outcomes]

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

    def _all_output(self):
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
        "GLOO_IFACE": "eth0",
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    return {f"HOROVOD_{key}": str(value) for key, value in variables.items()}
