"""A process that has imported TensorFlow once, and starts ranks as copies of itself.

    python starter.py

A line of stdin starts a rank: JSON with `host`, the number of a process in whose namespaces it is
to be, or null, `environment`, `folder`, `rank`, and `timeout` in seconds. The folder has the
pickled `call`, and gets `process_<rank>`, `output_<rank>`, `result_<rank>` if the function
returned, and `code_<rank>` when the rank has ended: its exit code, minus a signal, or "timed out".

A rank is a program that calls the function and ends as programs do, by the end of the script or by
an exception, with its exit handlers. It only leaves out to take all modules apart, which would take
as long as Horovod's start.
"""

import atexit
import ctypes
import faulthandler
import gc
import json
import os
import pickle
import signal
import sys
import time
from pathlib import Path

from group_embedding import testing

_NAMESPACES = ("net", "uts", "mnt", "pid_for_children")


def wait_for_ranks():
    """Starts a rank for each line of stdin. Returns in the ranks alone, each with its request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies are not waited for here
    print("ok", flush=True)
    while line := sys.stdin.readline():
        if os.fork() == 0:
            return _become_rank(json.loads(line))
    os._exit(0)


def _become_rank(request):
    """Returns in a process on the host; this one waits for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    if request["host"] is not None:
        _enter(request["host"])
    rank = os.fork()
    if rank == 0:
        return request
    write(Path(request["folder"], f"process_{request['rank']}"), str(rank).encode())
    code = _code_of(rank, request["timeout"])
    write(Path(request["folder"], f"code_{request['rank']}"), str(code).encode())
    os._exit(0)


def _enter(process):
    """Goes into the namespaces of a process. Those of process numbers are for children alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    files = [os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
    for file in files:
        if libc.setns(file, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(file)


def _code_of(process, timeout):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    return "timed out"


def run_rank(folder, rank, environment, timeout, host):
    """Is the program of a rank."""
    folder = Path(folder)
    if host is not None:  # whose folders may be its own
        os.chdir(folder)
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(folder / f"output_{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for file, stream in [(nothing, 0), (output, 1), (output, 2)]:
        os.dup2(file, stream)
    faulthandler.dump_traceback_later(max(1, timeout - 2))  # where it hangs
    code = 0
    try:
        call = pickle.loads((folder / "call").read_bytes())
        result = getattr(testing._module(call["file"]), call["function"])(*call["args"])
        write(folder / f"result_{rank}", pickle.dumps(result))
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def write(path, content):
    """In one step for whoever waits for the file."""
    partial = path.with_name("partial_" + path.name)
    partial.write_bytes(content)
    partial.rename(path)


if __name__ == "__main__":
    import horovod.tensorflow
    import tensorflow

    from group_embedding.ops import _library

    _library.library()
    del horovod, tensorflow  # imported for the ranks, as is the package with its ops
    gc.freeze()  # so that memory stays shared
    run_rank(**wait_for_ranks())
