"""The stacks of a test that hangs or crashes, which are the last lines of a run of the tests."""

import os
import tempfile
from pathlib import Path

PREFIX = "stacks-"  # of files in the folder of the run


def open_file(config):
    """Returns the file in which this process writes the stacks of its threads: its standard error,
    which no test captures. A process that the run has started has one of its own for `show`."""
    if not hasattr(config, "workerinput"):
        return os.dup(2)
    name = PREFIX + config.workerinput["workerid"]
    return open(Path(tempfile.gettempdir(), name), "w")


def show(config):
    """Writes what the processes that the run has started have written."""
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        if text := path.read_text():
            writer = config.get_terminal_writer()
            writer.line(f"The threads of {path.name[len(PREFIX) :]}, which ended in a test:")
            writer.line(text)
