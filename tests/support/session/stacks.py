"""The stacks of a test that hangs, which are the last lines of a run of the tests."""

import os
import tempfile
from pathlib import Path

PREFIX = "stacks-"  # of files in the folder of the run


def open_file(config):
    """Where this process writes the stacks of its threads: to its standard error, which no test
    captures. A process that the run has started has a file of its own for `show`."""
    if not hasattr(config, "workerinput"):
        return os.dup(2)
    name = PREFIX + config.workerinput["workerid"]
    return open(Path(tempfile.gettempdir(), name), "w")


def show(config):
    """Writes what the processes that the run has started have written."""
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        if text := path.read_text():
            writer = config.get_terminal_writer()
            writer.line(f"{path.name[len(PREFIX) :]}: a test took longer than --test-limit")
            writer.line(text)
