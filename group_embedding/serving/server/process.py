"""ge-serve, the server in C++: finding it, and running it as a process."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from group_embedding.files import DataSourceParams
from group_embedding.serving.server import fetched_models, mirrored_sources, server_arguments

PROGRAM = Path(__file__).resolve().parents[2] / "ge-serve"
READY = re.compile(r"ready, gRPC on [^,]*:(\d+)(?:, REST on .*:(\d+))?$")
# Debian's packages of the shared libraries that the program needs.
PACKAGES = {"libssl": "libssl3", "libcrypto": "libssl3", "libz": "zlib1g"}


def command(arguments: Sequence[str]) -> list[str]:
    """The command that starts the server on the installed TensorFlow.

    Args:
        arguments: of `ge-serve`; `--tensorflow` is added unless they have it.

    Returns:
        The program and its arguments. With a source or a model that is not a folder of this
        machine, the program is Python's, which starts the source's mirror and copies the model.

    Raises:
        FileNotFoundError: the server is not built, or a system library is missing.
    """
    if not PROGRAM.exists():
        raise FileNotFoundError(
            f"{PROGRAM} is missing: this package was built without the server; in a clone, "
            "`make serving` builds it, after requirements/serving.sh"
        )
    tried = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True)
    if tried.returncode != 0:
        raise FileNotFoundError(_why(tried.stderr))
    names = [name for name, _ in server_arguments.pairs_of(arguments)]
    is_remote = mirrored_sources.are_in(arguments) or fetched_models.are_in(arguments)
    if is_remote or server_arguments.DATA_SOURCE in names:
        return [sys.executable, "-m", "group_embedding.serving", "serve", *arguments]
    tensorflow = importlib.util.find_spec("tensorflow")
    if tensorflow is not None and tensorflow.origin and "--tensorflow" not in names:
        folder = str(Path(tensorflow.origin).parent)
        return [str(PROGRAM), *arguments, "--tensorflow", folder]
    return [str(PROGRAM), *arguments]


def _why(error):
    missing = re.findall(r"loading shared libraries: ((lib[\w+-]+?)\.so\S*):", error)
    if not missing:
        return f"{PROGRAM} does not start: {error.strip()}"
    ((name, stem),) = missing[:1]
    package = PACKAGES.get(stem, f"the package that has {name}")
    return f"ge-serve needs {name}: sudo apt-get install {package}"


def main(arguments: Sequence[str]) -> int:
    """Becomes the server; returns only where it cannot start.

    Models that are not on this machine are copied, and sources that are not folders are mirrored by
    processes that live as long as the server.

    Args:
        arguments: of `ge-serve`, and `--data-source`.

    Returns:
        The exit status.
    """
    temporary: list[str] = []
    try:
        local, copies = fetched_models.with_copies(server_arguments.with_urls(arguments))
        temporary.append(copies)
        local, sources, mirrors = mirrored_sources.with_folders(local)
        temporary.append(mirrors)
        program = command(local)
        if not sources or mirrored_sources.fetch(sources):
            if any(temporary) or sources:
                mirrored_sources.start(sources, [folder for folder in temporary if folder])
            os.execv(program[0], program)
    except (OSError, ValueError, ImportError) as error:
        print(f"group_embedding: {error}", file=sys.stderr)
    for folder in filter(None, temporary):
        shutil.rmtree(folder, ignore_errors=True)
    return 1


class ServerProcess:
    """A server that runs while a `with` block does, on free ports of 127.0.0.1.

    ```python
    with ServerProcess({"clicks": "export"}) as server:
        channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
    ```

    Attributes:
        grpc_port: of gRPC.
        rest_port: of REST.
        pid: of the process.
    """

    def __init__(
        self,
        models: Mapping[str, str | os.PathLike],
        *arguments: str,
        sources: Mapping[str, str | os.PathLike] | None = None,
        data_source: DataSourceParams | None = None,
        start_seconds: float = 120,
    ):
        """Keeps the arguments; the `with` statement starts the process.

        Args:
            models: {name: folder or URL of a SavedModel, or of numbered ones}. The newest at a
                URL is copied to this machine before the server starts.
            *arguments: more arguments of `ge-serve`.
            sources: {name of a model: the publisher's target that it follows}.
            data_source: the file system of models' paths, and of sources without a scheme; None:
                this machine's.
            start_seconds: after which a server that is not ready is killed.
        """
        listed = []
        for name, path in models.items():
            listed += ["--model", f"{name}={os.fspath(path)}"]
            if sources and name in sources:
                listed += ["--source", os.fspath(sources[name])]
        if data_source is not None:
            listed += [server_arguments.DATA_SOURCE, server_arguments.text_of(data_source)]
        self._arguments = [*listed, "--grpc-port", "0", "--rest-port", "0", *arguments]
        self._start_seconds = start_seconds
        self._errors: list[str] = []

    def __enter__(self) -> ServerProcess:
        self._process = subprocess.Popen(
            command(self._arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        late = threading.Timer(self._start_seconds, self._process.kill)
        late.start()
        try:
            ready = next(filter(None, map(READY.search, self._lines())), None)
        finally:
            late.cancel()
        if ready is None:
            self._process.wait()
            self._reader.join()
            raise RuntimeError(f"ge-serve did not start: {self.errors().strip()}")
        self.grpc_port = int(ready[1])
        self.rest_port = int(ready[2] or -1)
        return self

    def _lines(self):
        yield from self._process.stdout

    def _read_errors(self):
        self._errors.extend(self._process.stderr)

    def errors(self) -> str:
        """The text that the server has written to stderr."""
        return "".join(self._errors)

    def kill(self) -> None:
        """Ends the process at once (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def stop(self, seconds: float = 30) -> int:
        """Ends the process as SIGTERM does: requests in flight are answered.

        Args:
            seconds: after which it is killed.

        Returns:
            The exit status; 0 for a server that ended by itself.
        """
        self._process.terminate()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.returncode

    def running(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def __exit__(self, *_) -> None:
        if self.running():
            self.stop()
        self._process.stdout.close()
        self._reader.join()
