"""`Ranks`, which starts the ranks of a test and never hangs.

Also a script, which is what each rank runs:

    horovodrun -np 2 python -m group_embedding.testing <folder>
"""

import faulthandler
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

_PACKAGE_PARENT = Path(__file__).resolve().parents[1]
_START = 180  # seconds that horovodrun and TensorFlow may take to start


class Ranks:
    """Processes launched by horovodrun, which run functions when asked.

    They start with the first call, stay for the next, and end with `close`, after a failure, or
    with the process that made them.

    >>> with Ranks(2) as ranks:
    ...     ranks.run(function, argument)
    ['what rank 0 returned', 'what rank 1 returned']
    """

    def __init__(self, num_ranks):
        self.num_ranks = num_ranks
        self._folder = self._job = None

    def run(self, function, *args, timeout=180):
        """Calls `function(*args)` on all ranks.

        Args:
            function: at the top level of a module, which each rank loads from its file.
            args: picklable; the same on all ranks.
            timeout: seconds. A rank that takes longer prints where its threads are, and ends.

        Returns:
            What each rank returned (picklable), rank 0 first.

        Raises:
            AssertionError: a rank raised or took too long; with what all ranks printed.
        """
        if self._job is None:
            self._start()
        call = {
            "file": str(Path(function.__code__.co_filename).resolve()),
            "function": function.__qualname__,
            "args": args,
            "timeout": timeout,
        }
        _write(self._folder / f"call_{self._num_calls}", call)
        results = [
            self._folder / f"result_{self._num_calls}_{rank}" for rank in range(self.num_ranks)
        ]
        self._num_calls += 1
        deadline = time.monotonic() + _START + timeout
        while not all(result.exists() for result in results):
            if self._job.poll() is not None or time.monotonic() > deadline:
                output = self.close()
                raise AssertionError(
                    f"{function.__name__} failed on {self.num_ranks} ranks:\n{output}"
                )
            time.sleep(0.02)
        return [pickle.loads(result.read_bytes()) for result in results]

    def close(self):
        """Ends the processes; returns what they printed."""
        if self._job is None:
            return ""
        (self._folder / "close").touch()
        stop(self._job, grace=10)
        output = (self._folder / "output").read_text(errors="replace")
        self._temporary.cleanup()
        self._job = None
        return output

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _start(self):
        self._temporary = tempfile.TemporaryDirectory()
        self._folder = Path(self._temporary.name)
        self._num_calls = 0
        command = [sys.executable, "-m", "group_embedding.testing", str(self._folder)]
        with open(self._folder / "output", "w") as output:
            self._job = launch([*command, str(os.getpid())], self.num_ranks, output)


def launch(command, num_ranks, output, arguments=None):
    """Starts `command` on `num_ranks` processes of this machine; returns horovodrun's Popen.

    `arguments`: of horovodrun, in the place of `-np num_ranks`.
    """
    path = [str(_PACKAGE_PARENT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "HOROVOD_CYCLE_TIME": "10",  # milliseconds: idle ranks wake less often than by default
        # The ranks share the cores.
        "TF_NUM_INTRAOP_THREADS": str(max(1, len(os.sched_getaffinity(0)) // num_ranks)),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
    }
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    return subprocess.Popen(
        [horovodrun, "--gloo", *(arguments or ["-np", str(num_ranks)]), *command],
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )


def stop(job, grace):
    """Ends a job of `launch`, by force when it has not ended after `grace` seconds."""
    try:
        job.wait(grace)
    except subprocess.TimeoutExpired:
        job.send_signal(signal.SIGTERM)  # horovodrun then ends its ranks
        try:
            job.wait(10)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()


def _serve(folder, owner):
    """One rank: runs one call after the other, until told to close or its owner is gone."""
    rank = os.environ["HOROVOD_RANK"]
    num_calls = 0
    while not (folder / "close").exists() and Path(f"/proc/{owner}").exists():
        call = folder / f"call_{num_calls}"
        if not call.exists():
            time.sleep(0.02)
            continue
        _write(folder / f"result_{num_calls}_{rank}", _call(**pickle.loads(call.read_bytes())))
        num_calls += 1


def _call(file, function, args, timeout):
    faulthandler.dump_traceback_later(timeout, exit=True)
    try:
        return getattr(_module(file), function)(*args)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: an exit handler of Horovod would wait for the other ranks
    finally:
        faulthandler.cancel_dump_traceback_later()


def _module(file):
    name = Path(file).stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _write(path, content):
    """In one step for whoever waits for the file."""
    partial = path.with_name("partial_" + path.name)
    partial.write_bytes(pickle.dumps(content))
    partial.rename(path)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
