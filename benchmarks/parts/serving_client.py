"""Loads a gRPC server by the client in C++, and says how long answers took."""

import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("serving_load.cc")
REFUSED = 8  # RESOURCE_EXHAUSTED
TICKS = os.sysconf("SC_CLK_TCK")


def build(folder):
    """Compiles the client into a folder; returns its path.

    Raises:
        SystemExit: The compiler or libnghttp2 is missing.
    """
    program = Path(folder) / "serving_load"
    if shutil.which("g++") is None or not Path("/usr/include/nghttp2/nghttp2.h").exists():
        raise SystemExit("the client needs g++ and libnghttp2: apt-get install libnghttp2-dev")
    command = ["g++", "-std=c++17", "-O2", str(SOURCE), "-o", str(program), "-lnghttp2"]
    subprocess.run(command, check=True)
    return program


class Answers:
    """The answers of a run.

    Attributes:
        due, done: Seconds of CLOCK_MONOTONIC: when each request was due, and answered.
        versions: The version of the model that answered each.
        per_second: Requests that were answered in a second.
        refused: Requests that were not answered, as too many waited.
        server_ms, client_ms: Time of processors per request.
    """

    def __init__(self, table, server_seconds, client_seconds):
        codes = table[:, 2].astype(int)
        if not set(codes) <= {0, REFUSED} or 0 not in codes:
            raise RuntimeError(f"requests failed, gRPC's codes {sorted(set(codes.tolist()))}")
        self.refused = int((codes == REFUSED).sum())
        table = table[codes == 0]
        self.due, self.done, self.versions = table[:, 0], table[:, 1], table[:, 3].astype(int)
        self.per_second = len(table) / (self.done.max() - self.due.min())
        self.server_ms = 1e3 * server_seconds / len(table)
        self.client_ms = 1e3 * client_seconds / len(table)

    @property
    def ms(self):
        """How long each answer took."""
        return 1e3 * (self.done - self.due)

    def summary(self):
        """The figures of one row of a table."""
        p50, p99 = np.percentile(self.ms, [50, 99])
        return {
            "requests/s": round(self.per_second, 1),
            "mean ms": round(float(self.ms.mean()), 3),
            "p50 ms": round(float(p50), 3),
            "p99 ms": round(float(p99), 3),
            "longest ms": round(float(self.ms.max()), 3),
            "refused": self.refused,
            "server CPU ms": round(self.server_ms, 3),
            "client CPU ms": round(self.client_ms, 3),
        }

    def histogram(self):
        """[milliseconds, answers that took from there on to the next]."""
        edges = np.geomspace(0.05, 5000, 101)
        counts, _ = np.histogram(np.clip(self.ms, edges[0], edges[-1]), edges)
        return [[round(float(e), 4), int(n)] for e, n in zip(edges, counts) if n > 0]


def medians_of(runs):
    """The summary of several runs: the median of each figure, and the longest answer of all."""
    summaries = [run.summary() for run in runs]
    found = {name: round(statistics.median(s[name] for s in summaries), 3) for name in summaries[0]}
    return found | {"longest ms": max(s["longest ms"] for s in summaries)}


class Client:
    """Loads servers on 127.0.0.1.

    Args:
        folder: A folder for the program and its files.
        program: The compiled client; it is compiled otherwise.
    """

    def __init__(self, folder, program=None):
        self._folder = Path(folder)
        self._program = program or build(folder)

    def start(self, port, requests, seconds, *how):
        """Starts a run; `finish` of what it returns waits for its end.

        Args:
            port: The port of gRPC.
            requests: A file as `write_requests` makes it.
            seconds: In which requests are sent.
            *how: Arguments of serving_load.cc: ("--rate", 100), or ("--in-flight", 8).
        """
        return Run(self._program, self._folder, port, requests, seconds, how)

    def run(self, pid, port, requests, seconds, *how):
        """The answers of a whole run to the server with a process id."""
        return self.start(port, requests, seconds, *how).watch(pid).finish(pid)


class Run:
    """A run that has begun."""

    def __init__(self, program, folder, port, requests, seconds, how):
        handle, path = tempfile.mkstemp(dir=folder)
        os.close(handle)
        self._path = Path(path)
        given = {"--port": port, "--requests": requests, "--answers": path, "--seconds": seconds}
        arguments = [str(word) for pair in given.items() for word in pair]
        self._begin = {}
        self._process = subprocess.Popen([str(program), *arguments, *map(str, how)])

    def watch(self, pid):
        """Counts the time of a server's processors from now on."""
        self._begin[pid] = processor_seconds(pid)
        return self

    def finish(self, pid=None):
        """The answers, and processor time of the server `pid` if it was watched."""
        begin = self._begin.get(pid)
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode != 0:
            raise RuntimeError("the client failed")
        table = np.fromfile(self._path).reshape(-1, 4)
        self._path.unlink()
        server = processor_seconds(pid) - begin if begin is not None else float("nan")
        return Answers(table, server, usage.ru_utime + usage.ru_stime)


def processor_seconds(pid):
    """Seconds that a process and its threads have used, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
