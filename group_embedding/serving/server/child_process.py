"""A child that runs a function and ends with its parent.

Clients of services have threads, which do not survive a fork: what a server needs before it forks
its mirrors is asked in a child.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable


def run_in_child(function: Callable[[], bool]) -> int:
    """Starts a process.

    Args:
        function: What it does; it ends with status 0 if that returns true, else 1.

    Returns:
        The id of the process, for `os.waitpid`.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid != 0:
        return pid
    status = 1
    try:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        status = 0 if function() else 1
    finally:
        sys.stderr.flush()
        os._exit(status)


def _end_with(parent):
    """Ends this process once its parent has."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)
