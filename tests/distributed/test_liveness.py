"""Ranks that die, stop, raise or finish, and what the others make of it: processes without
TensorFlow."""

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MODULE = Path(__file__).parents[2] / "group_embedding/distributed/liveness.py"
NUM_RANKS = 3
TIMEOUT = 3.0  # seconds

# One rank: `gather` by files. It does as told by a file "do_<rank>", else computes for a minute.
RANK = """
import atexit, importlib.util, sys, time
from pathlib import Path
module, folder, rank, num_ranks, timeout, restarts = sys.argv[1:]
spec = importlib.util.spec_from_file_location("liveness", module)
liveness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(liveness)
liveness.GRACE = 1.0
folder, rank, num_ranks = Path(folder), int(rank), int(num_ranks)

def gather(text):
    (folder / f"partial_{rank}").write_text(text)
    (folder / f"partial_{rank}").rename(folder / f"address_{rank}")
    files = [folder / f"address_{r}" for r in range(num_ranks)]
    while not all(file.exists() for file in files):
        time.sleep(0.01)
    return [file.read_text() for file in files]

waits_at_exit = (folder / "wait_at_exit").exists()
if waits_at_exit:
    atexit.register(time.sleep, 60)
on_loss = (folder / f"told_{rank}").write_text
watch = liveness.Watch(rank, num_ranks, float(timeout), restarts == "1", gather, on_loss)
(folder / f"ready_{rank}").touch()
for _ in range(6000):
    time.sleep(0.01)
    if (folder / f"raise_{rank}").exists():
        raise ValueError("no such feature")
    if (folder / f"finish_{rank}").exists():
        break
    if waits_at_exit and (folder / f"told_{rank}").exists():
        break
"""


class Job:
    def __init__(self, folder, restarts=False):
        self.folder = folder
        self.ranks = [self._start(rank, restarts) for rank in range(NUM_RANKS)]
        while not all((folder / f"ready_{rank}").exists() for rank in range(NUM_RANKS)):
            time.sleep(0.01)

    def _start(self, rank, restarts):
        arguments = [MODULE, self.folder, rank, NUM_RANKS, TIMEOUT, int(restarts)]
        command = [sys.executable, "-c", RANK, *map(str, arguments)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def tell(self, rank, what):
        (self.folder / f"{what}_{rank}").touch()

    def end(self, rank):
        """Its exit code and what it printed."""
        _, errors = self.ranks[rank].communicate(timeout=20)
        return self.ranks[rank].returncode, errors

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize("lost", [0, 1])
def test_others_end_when_a_rank_is_killed(tmp_path, lost):
    with Job(tmp_path) as job:
        job.ranks[lost].kill()

        ends = [job.end(rank) for rank in range(NUM_RANKS) if rank != lost]

    for code, errors in ends:
        assert code == 1
        assert f"rank {lost}" in errors and "died" in errors
    for rank in {*range(NUM_RANKS)} - {lost}:
        assert f"rank {lost}" in (tmp_path / f"told_{rank}").read_text()


@pytest.mark.parametrize("lost", [0, 1])
def test_others_end_when_a_rank_is_stopped(tmp_path, lost):
    with Job(tmp_path) as job:
        job.ranks[lost].send_signal(signal.SIGSTOP)
        begin = time.monotonic()

        ends = [job.end(rank) for rank in range(NUM_RANKS) if rank != lost]

    assert time.monotonic() - begin < TIMEOUT + 10
    for code, errors in ends:
        assert code == 1
        assert f"rank {lost}" in errors and "has not answered for 3 s" in errors


def test_others_end_when_their_exit_handlers_wait_for_the_rank_that_is_lost(tmp_path):
    (tmp_path / "wait_at_exit").touch()
    with Job(tmp_path) as job:
        job.ranks[1].kill()

        codes = [job.end(rank)[0] for rank in (0, 2)]

    assert codes == [1, 1]


def test_others_are_told_what_a_rank_raised(tmp_path):
    with Job(tmp_path) as job:
        job.tell(2, "raise")

        ends = [job.end(rank) for rank in range(2)]

    for code, errors in ends:
        assert code == 1
        assert "rank 2" in errors and "raised ValueError: no such feature" in errors


def test_who_comes_late_is_told_as_well():
    liveness = _load()
    hub = liveness._Hub(num_ranks=3, timeout=TIMEOUT)
    with _connection(liveness, hub, rank=2) as first:
        first.sendall(b'{"raised": "ValueError: no such feature"}\n')
        assert b"no such feature" in first.makefile("rb").readline()

        with _connection(liveness, hub, rank=1) as late:
            told = late.makefile("rb").readline()

    hub.close()
    assert b"no such feature" in told


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_finishes_disturbs_nobody(tmp_path, first):
    with Job(tmp_path) as job:
        job.tell(first, "finish")
        ends = [job.end(first)]
        time.sleep(TIMEOUT + 1)

        for rank in range(NUM_RANKS):
            job.tell(rank, "finish")

        ends += [job.end(rank) for rank in range(NUM_RANKS) if rank != first]
    assert ends == [(0, "")] * NUM_RANKS


@pytest.mark.parametrize("lost", [0, 1])
def test_a_hanging_rank_is_ended_where_the_launcher_restarts(tmp_path, lost):
    others = [rank for rank in range(NUM_RANKS) if rank != lost]
    with Job(tmp_path, restarts=True) as job:
        job.ranks[lost].send_signal(signal.SIGSTOP)

        code_of_lost, _ = job.end(lost)
        for rank in others:
            job.tell(rank, "finish")

        ends = [job.end(rank) for rank in others]
    assert code_of_lost == -signal.SIGKILL
    # The first to find out ends it, and then others may find that it died.
    assert any("has not answered" in errors for _, errors in ends)
    for code, errors in ends:
        assert code == 0
        assert f"rank {lost}" in errors


def test_strangers_are_not_heard(tmp_path):
    with Job(tmp_path) as job:
        host, port, _ = json.loads((tmp_path / "address_0").read_text())["hub"]
        liveness = _load()
        with liveness.socket.create_connection((host, port), timeout=5) as stranger:
            stranger.sendall(b'{"secret": "guess"}\n{"rank": 1, "who": "me"}\n{"raised": "x"}\n')
            answer = stranger.recv(100)
        for rank in range(NUM_RANKS):
            job.tell(rank, "finish")

        ends = [job.end(rank) for rank in range(NUM_RANKS)]
    assert answer == b""
    assert ends == [(0, "")] * NUM_RANKS


def _connection(liveness, hub, rank):
    host, port, secret = hub.address
    connection = liveness.socket.create_connection((host, port), timeout=5)
    for words in ({"secret": secret}, {"rank": rank, "who": f"rank {rank}"}):
        connection.sendall(json.dumps(words).encode() + b"\n")
    return connection


def _load():
    spec = importlib.util.spec_from_file_location("liveness", MODULE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
