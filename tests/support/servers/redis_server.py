"""A real Redis server on loopback for tests: Debian's, which requirements/redis.sh installs."""

import contextlib
import shutil
import subprocess
import time

import pytest
from support.servers.loopback import free_port, wait_for_port
from support.servers.shared_server import ending_with_parent


class RedisServer:
    """A server that runs while a `with` block does.

    Args:
        folder: a path, for its data and log.
        *arguments: more arguments of `redis-server`.

    Attributes:
        address: host and port; the same after `stop` and `start`.
        arguments: as given.
    """

    def __init__(self, folder, *arguments):
        self._program = shutil.which("redis-server")
        if self._program is None:
            pytest.skip("redis-server is missing: run requirements/redis.sh")
        self._folder, self.arguments = folder, arguments
        self.address = f"127.0.0.1:{free_port()}"

    def start(self):
        """Returns once the server takes connections."""
        port = self.address.split(":")[1]
        command = [self._program, "--port", port, "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", str(self._folder), *self.arguments]
        with open(self._folder / "redis.log", "a") as log:
            self.process = subprocess.Popen(ending_with_parent(command), stdout=log, stderr=log)
        wait_for_port(self.address, self.process)

    def ask(self, *words):
        """The text that a command answers, by redis-cli."""
        host, port = self.address.split(":")
        command = ["redis-cli", "-h", host, "-p", port, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip()

    def stop(self):
        """Kills the server (SIGKILL)."""
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()


class RedisCluster:
    """Three primaries that share all slots, and a replica of the first, while a `with` block does.

    Args:
        folder: a path, for their data and logs.

    Attributes:
        nodes: four RedisServers; the last begins as the replica.
    """

    def __init__(self, folder):
        # A node that does not answer for this many milliseconds is taken for dead.
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]
        options += ["--repl-ping-replica-period", "1", "--repl-diskless-sync-delay", "0"]
        self.nodes = []
        for number in range(4):
            (folder / str(number)).mkdir(parents=True)
            # A node's second port is 10,000 above its first, unless it is named.
            other = ["--cluster-port", str(free_port())]
            self.nodes.append(RedisServer(folder / str(number), *other, *options))

    def __enter__(self):
        with contextlib.ExitStack() as started:
            for node in self.nodes:
                started.enter_context(node)
            self._join()
            self._started = started.pop_all()
        return self

    def _join(self):
        last = 16384
        first, *_, replica = self.nodes
        for number, node in enumerate(self.nodes[:3]):
            begin = last * number // 3
            node.ask("CLUSTER", "ADDSLOTSRANGE", begin, last * (number + 1) // 3 - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        host, port = first.address.split(":")
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", host, port, first.arguments[1])
        self.wait()
        replica.ask("CLUSTER", "REPLICATE", first.ask("CLUSTER", "MYID"))
        self.pair()

    def wait(self):
        """Until all nodes know that they have all slots, and each other."""
        for node in self.nodes:
            until(lambda node=node: node.ask("CLUSTER", "INFO"), "cluster_state:ok")
            until(lambda node=node: node.ask("CLUSTER", "INFO"), "cluster_known_nodes:4")

    def pair(self):
        """A primary, and the replica that has all it has."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            told = {node: node.ask("INFO", "replication") for node in self.nodes}
            primaries = [node for node, text in told.items() if "role:master" in text]
            for node, text in told.items():
                if "master_link_status:up" in text:
                    port = text.split("master_port:")[1].split()[0]
                    self.wait()
                    return next(n for n in primaries if n.address.endswith(":" + port)), node
            time.sleep(0.05)
        raise AssertionError(f"no replica is in sync: {told}")

    def __exit__(self, *_):
        self._started.close()


def until(ask, text, seconds=20):
    """Asks again and again, until a text is in the answer."""
    end = time.monotonic() + seconds
    while text not in (found := ask()):
        assert time.monotonic() < end, f"expected '{text}' within {seconds} s, got: {found}"
        time.sleep(0.05)
