"""Links between hosts, and callers of the hub that are no ranks: all in one process."""

import concurrent.futures
import json
import random
import socket
import time
from pathlib import Path

import pytest
from ranks.distributed.liveness_cases import (
    TIMEOUT,
    TOKEN,
    answer_of,
    introduced,
    introduction,
    load_liveness,
)


@pytest.fixture
def hub():
    liveness = load_liveness()
    hub = liveness.hub.Hub(num_ranks=3, timeout=TIMEOUT)
    yield hub
    hub.close()


def _linked(liveness, ranks):
    """The links of hosts with these first ranks."""
    listeners = {rank: socket.create_server(("127.0.0.1", 0)) for rank in ranks}
    addresses = {rank: listener.getsockname() for rank, listener in listeners.items()}

    def link(rank):
        return liveness.links.Links(introduction(rank), listeners[rank], addresses, TOKEN, 5.0)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(link, ranks))


def test_hosts_find_the_one_that_they_do_not_hear(monkeypatch):
    # Given three hosts that have heard each other
    liveness = load_liveness()
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
    liveness = load_liveness()
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    strangers = [socket.create_connection(address, timeout=5) for _ in range(3)]
    strangers[0].sendall(b"guess " * 6)
    strangers[1].sendall(TOKEN.encode() + b'{"rank": "1"}\n')
    strangers[2].sendall(TOKEN.encode() + liveness.lines.line_of(introduction(2)))
    # When no host calls
    with pytest.raises(ConnectionError) as raised:
        addresses = {1: address, 2: address}
        liveness.links.Links(introduction(2), listener, addresses, TOKEN, timeout=0.5)
    # Then it names the rank that it expected, and the strangers were sent away
    assert "rank 2: expected a connection from the host of rank 1" in str(raised.value)
    assert [answer_of(stranger) for stranger in strangers] == [b""] * 3


def test_a_host_that_cannot_be_reached_is_named():
    liveness = load_liveness()
    addresses = {}
    for rank in (1, 2):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            addresses[rank] = closed.getsockname()
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(ConnectionError) as raised:
        liveness.links.Links(introduction(1), listener, addresses, TOKEN, timeout=5.0)
    assert "rank 1: expected to reach the host of rank 2 at 127.0.0.1" in str(raised.value)


def test_all_are_told_of_hosts_that_do_not_reach_each_other(hub):
    liveness = load_liveness()
    with introduced(liveness, hub, rank=1) as one, introduced(liveness, hub, rank=2) as two:
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


def test_a_caller_without_the_token_costs_no_memory(hub):
    before = _resident_bytes()
    stranger = socket.create_connection(hub.address[:2], timeout=5)
    with stranger, pytest.raises(OSError):
        for _ in range(600):
            stranger.sendall(b"a" * (1 << 20))
    assert _resident_bytes() - before < 50 << 20


def test_a_rank_whose_line_has_no_end_is_heard_no_more(hub):
    liveness = load_liveness()
    before = _resident_bytes()
    with introduced(liveness, hub, rank=1) as first, introduced(liveness, hub, rank=2) as other:
        first.settimeout(5)
        with pytest.raises(OSError):
            for _ in range(600):
                first.sendall(b"a" * (1 << 20))
        told = next(line for line in other.makefile("rb") if b"ended" in line)
    assert json.loads(told)["ended"]["rank"] == 1
    assert "what no rank sends" in json.loads(told)["ended"]["how"]
    assert _resident_bytes() - before < 50 << 20


def test_more_callers_than_the_hub_keeps_do_not_keep_a_rank_out(hub):
    liveness = load_liveness()
    strangers = [socket.create_connection(hub.address[:2], timeout=5) for _ in range(200)]
    with introduced(liveness, hub, rank=1) as rank:
        answer = rank.makefile("rb").readline()
    closed = sum(answer_of(stranger, seconds=0.01) == b"" for stranger in strangers)
    for stranger in strangers:
        stranger.close()
    assert json.loads(answer) == {"alive": True}
    assert closed >= 200 - liveness.hub.MAX_STRANGERS


def test_a_caller_that_sends_its_token_slowly_is_sent_away(monkeypatch):
    liveness = load_liveness()
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
    liveness, choose = load_liveness(), random.Random(seed)
    with introduced(liveness, hub, rank=0) as rank:
        for _ in range(200):
            with socket.create_connection(hub.address[:2], timeout=5) as caller:
                if choose.random() < 0.8:
                    caller.sendall(hub.address[2].encode())
                for _ in range(choose.randrange(4)):
                    try:
                        caller.sendall(_any_line(choose))
                    except OSError:
                        break
        with introduced(liveness, hub, rank=2) as late:
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


def _resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
