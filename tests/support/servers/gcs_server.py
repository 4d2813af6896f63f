"""A server of Google Cloud Storage's protocol on loopback for tests, of gcp-storage-emulator."""

import importlib.util
import pathlib
import subprocess
import sys

from support.servers.loopback import free_port, wait_for_port
from support.servers.shared_server import ServerMissing, ending_with_parent

BUCKET = "shop"


class GcsServer:
    """A server with one empty bucket, kept in memory; `settings` has the `url` of the bucket and
    `environment`: the variables by which clients find it.

    Args:
        folder: a path, for logs.
    """

    def __init__(self, folder):
        self._folder, self._process = pathlib.Path(folder), None
        self.settings = {}

    def start(self):
        """Returns once the server takes connections.

        Raises:
            ServerMissing: It is not installed.
        """
        if importlib.util.find_spec("gcp_storage_emulator") is None:
            raise ServerMissing(
                "the server of Google's protocol is missing: "
                "pip install -r requirements/storage.txt"
            )
        address = f"127.0.0.1:{free_port()}"
        host, port = address.split(":")
        command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--in-memory", "--quiet"]
        command += ["--host", host, "--port", port, "--default-bucket", BUCKET]
        with open(self._folder / "gcs.log", "a") as log:
            self._process = subprocess.Popen(ending_with_parent(command), stdout=log, stderr=log)
        wait_for_port(address, self._process)
        self.settings = {
            "url": f"gs://{BUCKET}",
            "environment": {
                "STORAGE_EMULATOR_HOST": f"http://{address}",
                "FSSPEC_GS_TOKEN": "anon",
                # gcsfs would ask for the bucket's kind by gRPC, which the server does not speak.
                "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            },
        }

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
