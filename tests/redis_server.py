"""A real Redis server on loopback for tests: Debian's, which requirements/redis.sh installs."""

import contextlib
import shutil
import subprocess
import time

import pytest
from loopback import free_port, wait_for_port
from shared_server import ending_with_parent


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
    """Three nodes that share all slots, while a `with` block does.

    Args:
        folder: a path, for their data and logs.

    Attributes:
        nodes: RedisServers.
    """

    def __init__(self, folder):
        self.nodes = []
        for number in range(3):
            (folder / str(number)).mkdir(parents=True)
            # A node's second port is 10,000 above its first, unless it is named.
            other = ("--cluster-port", str(free_port()), "--cluster-node-timeout", "1000")
            self.nodes.append(RedisServer(folder / str(number), "--cluster-enabled", "yes", *other))

    def __enter__(self):
        with contextlib.ExitStack() as started:
            for node in self.nodes:
                started.enter_context(node)
            self._join()
            self._started = started.pop_all()
        return self

    def _join(self):
        last = 16384
        for number, node in enumerate(self.nodes):
            first = last * number // 3
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last * (number + 1) // 3 - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        host, port = self.nodes[0].address.split(":")
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", host, port, self.nodes[0].arguments[3])
        self.wait()

    def wait(self):
        """Until all nodes know that they have all slots."""
        end = time.monotonic() + 20
        for node in self.nodes:
            while "cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
                assert time.monotonic() < end, f"{node.address}: {node.ask('CLUSTER', 'NODES')}"
                time.sleep(0.05)

    def __exit__(self, *_):
        self._started.close()
