"""Ranks that die, stop, raise, finish or wait for each other, and what the others make of it:
processes without TensorFlow. test_hub.py has callers that are no ranks."""

import json
import signal
import socket
import subprocess
import sys
import time

import pytest
from ranks.distributed.liveness_cases import (
    MODULE,
    NUM_RANKS,
    TIMEOUT,
    answer_of,
    introduced,
    load_liveness,
)

# One rank: `gather` by files. It does as told by a file "do_<rank>", else computes for a minute.
RANK = """
import atexit, importlib.util, itertools, json, os, sys, time
from pathlib import Path
module, folder, rank, num_ranks, timeout, restarts = sys.argv[1:]
spec = importlib.util.spec_from_file_location("liveness", module)
liveness = sys.modules["liveness"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(liveness)
liveness.watch.GRACE = 1.0
folder, rank, num_ranks = Path(folder), int(rank), int(num_ranks)

numbers = itertools.count()
began = time.monotonic()

def gather(text):
    number = next(numbers)
    (folder / f"partial_{rank}").write_text(text)
    (folder / f"partial_{rank}").rename(folder / f"gathered_{number}_{rank}")
    files = [folder / f"gathered_{number}_{r}" for r in range(num_ranks)]
    while not all(file.exists() for file in files):
        time.sleep(0.01)
    return [file.read_text() for file in files]

def pending():
    file = folder / f"waits_{rank}"
    calls = json.loads(file.read_text()) if file.exists() else []
    return [(*call, time.monotonic() - began) for call in calls]

if (folder / "apart").exists():  # each rank is on a host of its own
    liveness.watch.network_of_host = lambda: f"host {rank}"
    liveness.own_address.own_address = lambda names: "127.0.0.1"
silent = folder / f"silent_{rank}"
beat = liveness.links.Links.beat
liveness.links.Links.beat = lambda links: [2, 60.0] if silent.exists() else beat(links)
waits_at_exit = (folder / "wait_at_exit").exists()
if waits_at_exit:
    atexit.register(time.sleep, 60)
def on_loss(sentence, all_live):
    (folder / f"told_{rank}").write_text(f"{sentence} {all_live}")

of_elsewhere = folder / f"elsewhere_{rank}"
if of_elsewhere.exists():
    parts = liveness.watch.identity_of(os.getpid()).split()
    parts[int(of_elsewhere.read_text())] = "another"
    liveness.watch.identity_of = lambda process: " ".join(parts)

watch = liveness.Watch(rank, num_ranks, float(timeout), restarts == "1", gather, on_loss, pending)
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
            assert all(rank.poll() is None for rank in self.ranks), self.ranks[0].communicate()[1]
            time.sleep(0.01)

    def _start(self, rank, restarts):
        arguments = [MODULE, self.folder, rank, NUM_RANKS, TIMEOUT, int(restarts)]
        command = [sys.executable, "-c", RANK, *map(str, arguments)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def tell(self, rank, what):
        (self.folder / f"{what}_{rank}").touch()

    def let_wait(self, rank, *calls):
        """From now on the rank says that it waits in calls, each a key and a description."""
        (self.folder / f"partial_{rank}").write_text(json.dumps(calls))
        (self.folder / f"partial_{rank}").rename(self.folder / f"waits_{rank}")

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


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
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
    liveness = load_liveness()
    hub = liveness.hub.Hub(num_ranks=3, timeout=TIMEOUT)
    with introduced(liveness, hub, rank=2) as first:
        first.sendall(b'{"raised": "ValueError: no such feature"}\n')
        lines = first.makefile("rb")
        assert b"no such feature" in next(line for line in lines if b"alive" not in line)

        with introduced(liveness, hub, rank=1) as late:
            lines = late.makefile("rb")
            told = next(line for line in lines if b"alive" not in line)

    hub.close()
    assert b"no such feature" in told


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_finishes_disturbs_nobody(tmp_path, first):
    with Job(tmp_path) as job:
        job.tell(first, "finish")
        ends = [job.end(first)]
        time.sleep(TIMEOUT + 1)

        for rank in range(NUM_RANKS):
            job.tell(rank, "finish")

        ends += [job.end(rank) for rank in range(NUM_RANKS) if rank != first]
    assert ends == [(0, "")] * NUM_RANKS


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
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


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3), ids=["boot_id", "namespace", "start_time"])
def test_a_process_of_the_number_of_a_hanging_rank_lives(tmp_path, part):
    # Given a rank of another machine of this hostname, whose number a process of this one has: the
    # rank itself, as no launcher is here
    (tmp_path / "elsewhere_1").write_text(str(part))
    with Job(tmp_path, restarts=True) as job:
        # When the rank hangs
        job.ranks[1].send_signal(signal.SIGSTOP)
        told = [tmp_path / f"told_{rank}" for rank in (0, 2)]
        end = time.monotonic() + TIMEOUT + 10
        while not all(file.exists() for file in told) and time.monotonic() < end:
            time.sleep(0.05)
        for rank in (0, 2):
            job.tell(rank, "finish")
        ends = [job.end(rank) for rank in (0, 2)]

        # Then the others say so, and the process of that number lives
        assert [code for code, _ in ends] == [0, 0]
        assert all("has not answered for 3 s" in errors for _, errors in ends)
        assert job.ranks[1].poll() is None


# What TensorFlow's errors say, and the line of it that says what is wrong.
ERRORS = {
    "no such feature\nof these": "no such feature",
    "": "",
    "Graph execution error:": "Graph execution error:",
    """Graph execution error:

Detected at node Assert defined at (most recent call last):
<stack traces unavailable>
assertion failed: [no such feature]
\t [[{{node Assert}}]] [Op:__inference_step_9]""": "assertion failed: [no such feature]",
    """Graph execution error:

Detected at node 'save/SaveV2' defined at (most recent call last):
    File "train.py", line 9, in <module>
Node: 'save/SaveV2'
/runs/a; No such file or directory
\t [[{{node save/SaveV2}}]]""": "/runs/a; No such file or directory",
    """Graph execution error:

2 root error(s) found.
  (0) INVALID_ARGUMENT:  {{function_node f}} expected ids < 5, got 7 [[{{node lookup}}]]
  (1) CANCELLED:  {{function_node f}} it was cancelled
0 successful operations.""": "expected ids < 5, got 7",
}


@pytest.mark.parametrize("text", ERRORS)
def test_the_line_of_an_error_that_says_what_is_wrong(text):
    assert load_liveness().error_line.error_line(text) == ERRORS[text]


def test_strangers_are_not_heard(tmp_path):
    with Job(tmp_path) as job:
        host, port, _ = json.loads((tmp_path / "gathered_1_0").read_text())["hub"]
        with socket.create_connection((host, port), timeout=5) as stranger:
            stranger.sendall(b"guess " * 6 + b'{"rank": 1, "who": "me"}\n{"raised": "x"}\n')
            answer = answer_of(stranger)
        for rank in range(NUM_RANKS):
            job.tell(rank, "finish")

        ends = [job.end(rank) for rank in range(NUM_RANKS)]
    assert host == "127.0.0.1"  # as all ranks are of one host
    assert answer == b""
    assert ends == [(0, "")] * NUM_RANKS


def test_ranks_that_wait_for_each_other_all_say_which_waits_in_what(tmp_path):
    with Job(tmp_path) as job:
        # Given two ranks in one call, and a third in another, beside one in which all are
        everywhere = ("mean", "the mean of the gradients")
        for rank in (0, 2):
            job.let_wait(rank, ("exchange_ids", "a lookup of table 'user'"), everywhere)
        job.let_wait(1, ("make_table", "making table 'extra'"), everywhere)

        # When nothing else happens
        ends = [job.end(rank) for rank in range(NUM_RANKS)]

    # Then all end, and say so
    for rank, (code, errors) in enumerate(ends):
        assert code == 1
        assert "rank 0 waits in a lookup of table 'user'" in errors
        assert "rank 1 waits in making table 'extra'" in errors
        told = (tmp_path / f"told_{rank}").read_text()
        assert "rank 1 waits in making table 'extra'" in told and told.endswith("True")


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ranks_that_wait_for_one_whose_program_has_ended_say_so(tmp_path, first):
    others = [rank for rank in range(NUM_RANKS) if rank != first]
    with Job(tmp_path) as job:
        job.tell(first, "finish")
        assert job.end(first)[0] == 0
        for rank in others:
            job.let_wait(rank, ("exchange_ids", "a lookup of table 'user'"))

        ends = [job.end(rank) for rank in others]

    for code, errors in ends:
        assert code == 1
        assert f"rank {first} (process" in errors
        assert "has left: its program has ended" in errors
        assert "a lookup of table 'user'" in errors


@pytest.mark.slow
def test_ranks_that_wait_for_one_that_computes_go_on(tmp_path):
    with Job(tmp_path) as job:
        for rank in (0, 2):
            job.let_wait(rank, ("exchange_ids", "a lookup of table 'user'"))
        time.sleep(2 * TIMEOUT)
        for rank in range(NUM_RANKS):
            job.let_wait(rank)
            job.tell(rank, "finish")

        assert [job.end(rank) for rank in range(NUM_RANKS)] == [(0, "")] * NUM_RANKS


@pytest.mark.parametrize("restarts", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_ranks_end_where_two_hosts_do_not_reach_each_other(tmp_path, restarts):
    # Given ranks on three hosts
    (tmp_path / "apart").touch()
    with Job(tmp_path, restarts) as job:
        # When one does not hear another one
        job.tell(1, "silent")
        ends = {2: job.end(2)}
        if restarts:
            job.tell(0, "finish"), job.tell(1, "finish")
        ends |= {rank: job.end(rank) for rank in range(2)}

    # Then all say so and end; where the job is restarted, one of the two makes way
    assert [ends[rank][0] for rank in range(NUM_RANKS)] == ([0, 0, 1] if restarts else [1, 1, 1])
    for _, errors in ends.values():
        assert "rank 1 (process" in errors and "and rank 2 (process" in errors
        assert "do not reach each other: for 3 s" in errors
