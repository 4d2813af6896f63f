"""Ranks that die, stop, raise, finish or wait for each other, and what the others make of it; and
callers that are no ranks: processes without TensorFlow."""

import concurrent.futures
import functools
import importlib.util
import json
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

MODULE = Path(__file__).parents[3] / "group_embedding/ranks/exchange/liveness/__init__.py"
NUM_RANKS = 3
TIMEOUT = 3.0  # seconds
_TOKEN = "t" * 32

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
    liveness.watch.own_address = lambda names: "127.0.0.1"
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
    liveness = _load()
    hub = liveness.hub.Hub(num_ranks=3, timeout=TIMEOUT)
    with _connection(liveness, hub, rank=2) as first:
        first.sendall(b'{"raised": "ValueError: no such feature"}\n')
        lines = first.makefile("rb")
        assert b"no such feature" in next(line for line in lines if b"alive" not in line)

        with _connection(liveness, hub, rank=1) as late:
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
    assert _load().error_line.error_line(text) == ERRORS[text]


def test_strangers_are_not_heard(tmp_path):
    with Job(tmp_path) as job:
        host, port, _ = json.loads((tmp_path / "gathered_1_0").read_text())["hub"]
        with socket.create_connection((host, port), timeout=5) as stranger:
            stranger.sendall(b"guess " * 6 + b'{"rank": 1, "who": "me"}\n{"raised": "x"}\n')
            answer = _answer(stranger)
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


def _linked(liveness, ranks):
    """The links of hosts with these first ranks."""
    listeners = {rank: socket.create_server(("127.0.0.1", 0)) for rank in ranks}
    addresses = {rank: listener.getsockname() for rank, listener in listeners.items()}

    def link(rank):
        return liveness.links.Links(_introduction(rank), listeners[rank], addresses, _TOKEN, 5.0)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(link, ranks))


def test_hosts_find_the_one_that_they_do_not_hear(monkeypatch):
    # Given three hosts that have heard each other
    liveness = _load()
    monkeypatch.setattr(liveness.links, "LATE", 0.3)
    one, two, three = _linked(liveness, ranks=[1, 2, 5])
    assert [links.beat() for links in (one, two, three)] == [None, None, None]

    # When one is silent
    begin = time.monotonic()
    while time.monotonic() < begin + 0.5:
        one.beat(), two.beat()
        time.sleep(0.05)

    # Then both others say which, until its process ends
    for links in (one, two):
        rank, seconds = links.beat()
        assert rank == 5 and 0.3 < seconds <= time.monotonic() - begin + 0.1
    three.close()
    assert [one.beat(), two.beat()] == [None, None]
    one.close(), two.close()


def test_callers_that_are_no_hosts_are_not_linked():
    # Given a host that waits for another, and is called by strangers
    liveness = _load()
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    strangers = [socket.create_connection(address, timeout=5) for _ in range(3)]
    strangers[0].sendall(b"guess " * 6)
    strangers[1].sendall(_TOKEN.encode() + b'{"rank": "1"}\n')
    strangers[2].sendall(_TOKEN.encode() + liveness.lines.line_of(_introduction(2)))
    # When no host calls
    with pytest.raises(ConnectionError) as raised:
        addresses = {1: address, 2: address}
        liveness.links.Links(_introduction(2), listener, addresses, _TOKEN, timeout=0.5)
    # Then it names the rank that it expected, and the strangers were sent away
    assert "rank 2: expected a connection from the host of rank 1" in str(raised.value)
    assert [_answer(stranger) for stranger in strangers] == [b""] * 3


def test_a_host_that_cannot_be_reached_is_named():
    liveness = _load()
    addresses = {}
    for rank in (1, 2):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            addresses[rank] = closed.getsockname()
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(ConnectionError) as raised:
        liveness.links.Links(_introduction(1), listener, addresses, _TOKEN, timeout=5.0)
    assert "rank 1: expected to reach the host of rank 2 at 127.0.0.1" in str(raised.value)


def test_all_are_told_of_hosts_that_do_not_reach_each_other(hub):
    liveness = _load()
    with _connection(liveness, hub, rank=1) as one, _connection(liveness, hub, rank=2) as two:
        # Given that a host has not heard another one, for too short a time and then for long
        one.sendall(liveness.lines.line_of({"alive": True, "silent": [2, TIMEOUT - 1]}))
        time.sleep(1.5)
        one.sendall(liveness.lines.line_of({"alive": True, "silent": [2, TIMEOUT]}))
        two.sendall(liveness.lines.line_of({"alive": True}))
        # When the hub speaks next
        told = [
            next(line for line in rank.makefile("rb") if b"alive" not in line)
            for rank in (one, two)
        ]
    # Then it names both
    for line in map(json.loads, told):
        assert "rank 1 and rank 2 do not reach each other: for 3 s" in line["parted"]
        assert line["ends"] == 2


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


@pytest.fixture
def hub():
    liveness = _load()
    hub = liveness.hub.Hub(num_ranks=3, timeout=TIMEOUT)
    yield hub
    hub.close()


def test_a_caller_without_the_token_costs_no_memory(hub):
    before = _resident_bytes()
    stranger = socket.create_connection(hub.address[:2], timeout=5)
    with stranger, pytest.raises(OSError):
        for _ in range(600):
            stranger.sendall(b"a" * (1 << 20))
    assert _resident_bytes() - before < 50 << 20


def test_a_rank_whose_line_has_no_end_is_heard_no_more(hub):
    liveness = _load()
    before = _resident_bytes()
    with _connection(liveness, hub, rank=1) as first, _connection(liveness, hub, rank=2) as other:
        first.settimeout(5)
        with pytest.raises(OSError):
            for _ in range(600):
                first.sendall(b"a" * (1 << 20))
        told = next(line for line in other.makefile("rb") if b"ended" in line)
    assert json.loads(told)["ended"]["rank"] == 1
    assert "what no rank sends" in json.loads(told)["ended"]["how"]
    assert _resident_bytes() - before < 50 << 20


def test_more_callers_than_the_hub_keeps_do_not_keep_a_rank_out(hub):
    liveness = _load()
    strangers = [socket.create_connection(hub.address[:2], timeout=5) for _ in range(200)]
    with _connection(liveness, hub, rank=1) as rank:
        answer = rank.makefile("rb").readline()
    closed = sum(_answer(stranger, seconds=0.01) == b"" for stranger in strangers)
    for stranger in strangers:
        stranger.close()
    assert json.loads(answer) == {"alive": True}
    assert closed >= 200 - liveness.hub.MAX_STRANGERS


def test_a_caller_that_sends_its_token_slowly_is_sent_away(monkeypatch):
    liveness = _load()
    monkeypatch.setattr(liveness.hub, "TOKEN_SECONDS", 0.5)
    hub = liveness.hub.Hub(num_ranks=3, timeout=TIMEOUT)
    stranger = socket.create_connection(hub.address[:2], timeout=5)
    with stranger, pytest.raises(OSError):
        for byte in hub.address[2].encode():
            stranger.sendall(bytes([byte]))
            time.sleep(0.1)
    hub.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_hub_survives_whatever_it_is_sent(hub, seed):
    print(f"seed {seed}")
    liveness, choose = _load(), random.Random(seed)
    with _connection(liveness, hub, rank=0) as rank:
        for _ in range(200):
            with socket.create_connection(hub.address[:2], timeout=5) as caller:
                if choose.random() < 0.8:
                    caller.sendall(hub.address[2].encode())
                for _ in range(choose.randrange(4)):
                    try:
                        caller.sendall(_any_line(choose))
                    except OSError:
                        break
        with _connection(liveness, hub, rank=2) as late:
            late.sendall(b'{"raised": "ValueError: no such feature"}\n')
            told = next(line for line in rank.makefile("rb") if b"no such feature" in line)
    assert json.loads(told)["ended"]["rank"] == 2


def _any_line(choose):
    """A line that no rank sends; some have the form of valid lines, with values of other types."""
    if choose.random() < 0.3:
        return bytes(choose.randrange(256) for _ in range(choose.randrange(2000)))
    values = [None, -1, 3, 10**400, 1.5, "a", "\ud800", True, [], [["a"]], {}, {"rank": 1}, [[[1]]]]
    names = ["rank", "who", "identity", "process", "waits", "silent", "alive", "x"]
    words = {name: choose.choice(values) for name in choose.sample(names, choose.randrange(7))}
    deep = b"[" * 50_000
    return choose.choice([json.dumps(words).encode(), b"null", b"[1]", b"NaN", deep]) + b"\n"


def _connection(liveness, hub, rank):
    host, port, token = hub.address
    connection = socket.create_connection((host, port), timeout=10)
    connection.sendall(token.encode() + liveness.lines.line_of(_introduction(rank)))
    return connection


def _introduction(rank):
    return {"rank": rank, "who": f"rank {rank}", "identity": "one", "process": 1 << 30}


def _answer(connection, seconds=5):
    """The received data; empty once the other side has closed the connection."""
    connection.settimeout(seconds)
    try:
        return connection.recv(100)
    except socket.timeout:
        return None
    except ConnectionError:
        return b""


def _resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@functools.cache
def _load():
    spec = importlib.util.spec_from_file_location("liveness", MODULE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["liveness"] = module
    spec.loader.exec_module(module)
    return module
