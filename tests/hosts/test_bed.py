"""The bed itself: hosts are apart where those of a cluster are, reach each other by a link that
does what its commands say, and leave nothing behind."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

BOOT_ID = "/proc/sys/kernel/random/boot_id"
ECHO = """
import socket
listener = socket.create_server(("", 7000))
print("listens", flush=True)
while True:
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(1 << 20):
            connection.sendall(data)
"""
# Prints the seconds that a byte takes to come back, or that nothing came within a second.
PING = """
import socket, sys, time
begin = None
try:
    with socket.create_connection((sys.argv[1], 7000), timeout=1) as connection:
        begin = time.monotonic()
        connection.sendall(bytes(int(sys.argv[2])))
        left = int(sys.argv[2])
        while left:
            left -= len(connection.recv(left))
    print(time.monotonic() - begin)
except TimeoutError:
    print("nothing")
"""


@pytest.fixture
def echoing(make_bed):
    """Two hosts and more, each of which sends back what it is sent."""

    def make(num_hosts):
        bed = make_bed(num_hosts)
        for host in bed.hosts.values():
            server = host.start([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True)
            assert server.stdout.readline() == "listens\n"
        return bed

    return make


def ping(bed, one, other, num_bytes=1):
    """Seconds until bytes are back; None: they do not come back."""
    said = bed.hosts[one].run(sys.executable, "-c", PING, bed.hosts[other].address, num_bytes)
    return None if said == "nothing\n" else float(said)


def test_hosts_are_apart(make_bed, tmp_path):
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir(), shared.mkdir()
    bed = make_bed(2, [own])

    found = {}
    for name, host in bed.hosts.items():
        host.run("touch", own / name, shared / name, f"/dev/shm/of_{name}")
        found[name] = {
            "hostname": host.run("hostname"),
            "boot id": host.run("cat", BOOT_ID),
            "network": host.run("readlink", "/proc/self/ns/net"),
            "own folder": host.run("ls", own),
            "/dev/shm": host.run("ls", "/dev/shm"),
        }

    a, b = found["a"], found["b"]
    assert (a["hostname"], b["hostname"]) == ("a\n", "b\n") and socket.gethostname() not in "ab"
    assert len({a["boot id"], b["boot id"], Path(BOOT_ID).read_text()}) == 3
    assert a["network"] != b["network"]
    assert (a["own folder"], b["own folder"]) == ("a\n", "b\n") and not list(own.iterdir())
    assert (a["/dev/shm"], b["/dev/shm"]) == ("of_a\n", "of_b\n")
    assert bed.hosts["a"].run("ls", shared) == "a\nb\n"


def test_hosts_reach_each_other_by_name(echoing):
    bed = echoing(3)

    found = {
        (one, other): bed.hosts[one].run(sys.executable, "-c", PING, other, 1)
        for one, other in [("a", "b"), ("b", "c"), ("c", "a"), ("a", "a")]
    }

    assert all(float(seconds) < 1 for seconds in found.values()), found


def test_a_link_delays(echoing):
    bed = echoing(2)

    bed.set_link("a", "b", delay=150)

    assert 0.3 <= ping(bed, "a", "b") < 0.6
    assert 0.3 <= ping(bed, "b", "a") < 0.6


def test_a_link_has_a_rate(echoing):
    bed = echoing(2)

    bed.set_link("a", "b", rate=8)  # a megabyte per second

    seconds = ping(bed, "a", "b", 200_000)  # back while the rest is on its way there
    assert 0.2 <= seconds < 0.8, seconds


def test_a_link_loses(echoing):
    bed = echoing(2)

    bed.set_link("a", "b", loss=100)
    with_loss = ping(bed, "a", "b")
    bed.set_link("a", "b", loss=0)

    assert with_loss is None
    assert ping(bed, "a", "b") is not None


def test_a_link_is_cut_and_comes_back(echoing):
    bed = echoing(3)

    bed.set_link("b", "c", is_up=False)
    cut = {pair: ping(bed, *pair) for pair in ["bc", "cb", "ab", "ca"]}
    bed.set_link("b", "c")

    assert [pair for pair, seconds in cut.items() if seconds is None] == ["bc", "cb"]
    assert ping(bed, "b", "c") is not None


@pytest.mark.soak
def test_a_stream_goes_on_after_a_short_cut(echoing):
    bed = echoing(2)
    stream = """
import socket
with socket.create_connection(("b", 7000)) as connection:
    connection.sendall(b"1")
    print(connection.recv(1).decode(), flush=True)
    input()
    connection.sendall(b"2")
    print(connection.recv(1).decode(), flush=True)
"""
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with bed.hosts["a"].start([sys.executable, "-c", stream], **pipe) as process:
        assert process.stdout.readline() == "1\n"

        bed.set_link("a", "b", is_up=False)
        print(file=process.stdin, flush=True)  # sent while the link is cut
        time.sleep(0.3)
        bed.set_link("a", "b")

        assert process.stdout.readline() == "2\n"


def test_a_process_ends_as_on_its_host(make_bed):
    bed = make_bed(2)

    codes = [
        bed.hosts[name].start(["sh", "-c", script]).wait(10)
        for name, script in [("a", "exit 7"), ("b", "kill -KILL $$")]
    ]

    assert codes == [7, -signal.SIGKILL]


def test_nothing_is_left_behind(make_bed):
    before = _of_machine()
    bed = make_bed(2)
    # A process in a session of its own, as a daemon's, with a parent that has gone.
    bed.hosts["a"].run("sh", "-c", "setsid sleep 4321 >/dev/null 2>&1 &")
    bed.hosts["b"].start(["sleep", "4321"])
    assert _become(2, "sleep 4321")

    bed.close()

    assert _become(0, "sleep 4321")
    assert _of_machine() == before


def _of_machine():
    """The names of what outlives processes: links, named namespaces, mounts."""
    links = re.findall(r"^\d+: (\S+?)[:@]", _said("ip", "link"), re.MULTILINE)
    return links, _said("ip", "netns", "list"), Path("/proc/self/mounts").read_text()


def _said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _become(num, command):
    """Waits until so many processes of this command are there: they begin and end a little late."""
    end = time.monotonic() + 5
    while _running(command) != num:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _running(command):
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found += file.read_bytes().split(b"\0")[:-1] == command.encode().split()
    return found
