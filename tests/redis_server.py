"""A real Redis server on loopback for tests: Debian's, which requirements/redis.sh installs."""

import shutil
import subprocess

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
    """

    def __init__(self, folder, *arguments):
        self._program = shutil.which("redis-server")
        if self._program is None:
            pytest.skip("redis-server is missing: run requirements/redis.sh")
        self._folder, self._arguments = folder, arguments
        self.address = f"127.0.0.1:{free_port()}"

    def start(self):
        """Returns once the server takes connections."""
        port = self.address.split(":")[1]
        command = [self._program, "--port", port, "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", str(self._folder), *self._arguments]
        with open(self._folder / "redis.log", "a") as log:
            self.process = subprocess.Popen(ending_with_parent(command), stdout=log, stderr=log)
        wait_for_port(self.address, self.process)

    def stop(self):
        """Kills the server (SIGKILL)."""
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
