"""`Bed`: several hosts on one machine, for tests of ranks that run on different ones.

A host is a process with Linux namespaces of its own: a network with the device `eth0`, a hostname,
process numbers, and mounts, by which it has its own /dev/shm, /etc/hosts and boot id. All else of
the file system is shared, as by the hosts of a cluster. Nothing has a name outside of the hosts, so
beds may stand side by side, and nothing of one is left when its processes have ended.
"""

import collections
import contextlib
import os
import shutil
import subprocess
import uuid
from pathlib import Path

_LINK = Path(__file__).with_name("link.cc")
_PROGRAMS = ("unshare", "nsenter", "ip", "mount", "g++")
_NAMESPACES = ["--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

Traffic = collections.namedtuple("Traffic", ["packets", "bytes", "crossings"])
Traffic.__doc__ = """A count of the packets on the links of a bed.

Attributes: `packets`, `bytes`; `crossings`, the length of the longest chain of TCP packets with
data, each of which left a host after the one before it had arrived there.
"""


def why_not():
    """Why this machine has no bed; None: it has one."""
    if os.geteuid() != 0:
        return "a bed of hosts is made by root alone"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    made = subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True, text=True)
    return f"namespaces cannot be made: {made.stderr.strip()}" if made.returncode else None


def compile_link(program):
    """Compiles the relay between hosts."""
    command = ["g++", "-std=c++17", "-O2", "-Wall", "-o", str(program), str(_LINK)]
    subprocess.run(command, check=True)


class Host:
    """One host of a bed.

    Attributes: `name`, `address`, and `hosts_file`, the path of what it finds as /etc/hosts.
    """

    def __init__(self, name, address, folder, own_folders):
        self.name, self.address = name, address
        self.hosts_file = folder / "hosts"
        self.hosts_file.touch()
        boot_id = folder / "boot_id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        setup = [
            f"hostname {name}",
            "mount -t tmpfs none /dev/shm",
            f"mount --bind {self.hosts_file} /etc/hosts",
            f"mount --bind {boot_id} {_BOOT_ID}",
        ]
        for i, own in enumerate(own_folders):
            (folder / f"own_{i}").mkdir()
            setup.append(f"mount --bind {folder / f'own_{i}'} {own}")
        script = " && ".join([*setup, "ip link set lo up", "echo ok", "exec cat"])
        self._process = subprocess.Popen(
            ["unshare", *_NAMESPACES, "sh", "-c", script],
            stdin=subprocess.PIPE,  # `cat`, process 1 of the host, ends with it
            stdout=subprocess.PIPE,
            text=True,
        )
        _expect_ok(self._process, f"host {name}")

    @property
    def pid(self):
        """A process that is in the namespaces of the host."""
        return self._process.pid

    def start(self, command, **options):
        """Starts a command on the host: a Popen, in a process group of its own.

        Its process number is that of a process outside of the host, which ends with the command
        and as it did.
        """
        pid = self._process.pid
        of_children = f"--pid=/proc/{pid}/ns/pid_for_children"
        enter = ["nsenter", f"--target={pid}", "--net", "--uts", "--mount", of_children]
        command = [str(word) for word in command]
        return subprocess.Popen([*enter, *command], start_new_session=True, **options)

    def run(self, *command):
        """Runs a command on the host; returns what it printed."""
        process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, f"{command}: {output}"
        return output

    def close(self):
        """Ends all processes of the host."""
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)  # it is stopped, if all of it was
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Bed:
    """Hosts named a, b, c, ..., each of which reaches the others at 10.77.0.1, 10.77.0.2, ...

    Args:
        folder: an empty one, for the bed's own files.
        link: the relay, from `compile_link`.
        num_hosts: at most 26.
        own_folders: paths of folders which each host has for itself, empty at first.

    Example:

    >>> with Bed(tmp_path, link, 2) as bed:
    ...     bed.hosts["a"].run("hostname")
    ...     bed.set_link("a", "b", delay=20)
    ...     bed.set_link("a", "b", is_up=False)
    'a\\n'
    """

    def __init__(self, folder, link, num_hosts, own_folders=()):
        self.hosts = {}
        self._ends = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._ends)
            for i in range(num_hosts):
                name = chr(ord("a") + i)
                own = Path(folder, f"host_{name}")
                own.mkdir(parents=True)
                host = Host(name, f"10.77.0.{i + 1}", own, own_folders)
                self._ends.callback(host.close)
                self.hosts[name] = host
            self._start_link(link)
            undo.pop_all()
        for host in self.hosts.values():
            host.hosts_file.write_text("127.0.0.1 localhost\n" + self.names())

    def _start_link(self, link):
        pids = [str(host.pid) for host in self.hosts.values()]
        self._link = subprocess.Popen(
            [str(link), *pids], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ends.callback(self._stop_link)
        _expect_ok(self._link, "the link")
        for host in self.hosts.values():
            host.run("ip", "addr", "add", f"{host.address}/24", "dev", "eth0")
            host.run("ip", "link", "set", "eth0", "mtu", "9000", "up")

    def _stop_link(self):
        self._link.stdin.close()
        self._link.wait()
        self._link.stdout.close()

    def names(self):
        """The lines of /etc/hosts that name all hosts."""
        return "".join(f"{host.address} {host.name}\n" for host in self.hosts.values())

    def set_congestion_control(self, name):
        """Sets how TCP connections made from now on find out what the link carries: cubic, as Linux
        has it by default, or another that the kernel has."""
        for host in self.hosts.values():
            host.run("sh", "-c", f"echo {name} > /proc/sys/net/ipv4/tcp_congestion_control")

    def set_link(self, one, other, *, delay=0, rate=0, loss=0, is_up=True, one_way=False):
        """Sets the link between two hosts. It is so when this returns.

        Args:
            one, other: names of hosts.
            delay: milliseconds that a packet is on its way.
            rate: Mbit per second; 0: unlimited.
            loss: percent of packets.
            is_up: false: the link is cut, and loses all packets.
            one_way: true: sets the way from `one` to `other`, and leaves the way back as it is.
        """
        names = list(self.hosts)
        pair = names.index(one), names.index(other)
        for way in [pair] if one_way else [pair, pair[::-1]]:
            print(*way, delay, rate, loss, int(is_up), file=self._link.stdin, flush=True)
            _expect_ok(self._link, "the link")

    def count(self):
        """Returns the `Traffic` of all links since the last call."""
        print("count", file=self._link.stdin, flush=True)
        return Traffic(*map(int, self._link.stdout.readline().split()))

    def close(self):
        """Ends all processes of all hosts, and with them all that the bed made."""
        self._ends.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _expect_ok(process, what):
    answer = process.stdout.readline()
    assert answer == "ok\n", f"{what}: expected it to be ready, got {answer!r}"
