"""Hosts of the test bed, and what starts ranks on them, for benchmarks of ranks over hosts.

Imported by a part once `tests/` is on its path.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

from hosts.bed import Bed, compile_link, why_not
from support.programs.ranks import Starter


@contextlib.contextmanager
def joined_hosts(num_hosts=2):
    """(Bed, Starter, an empty folder) of so many hosts, which end with the block.

    Raises:
        SystemExit: this machine can make no hosts; says why.
    """
    if why_not():
        sys.exit(why_not())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        starter = Starter()
        stack.callback(starter.close)
        compile_link(folder / "link")
        bed = stack.enter_context(Bed(folder / "bed", folder / "link", num_hosts))
        yield bed, starter, folder
