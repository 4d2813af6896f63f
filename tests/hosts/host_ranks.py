"""`HostRanks`: the ranks that the tests of `ranks/exchange` call, on the hosts of a bed."""

import contextlib
import tempfile
from pathlib import Path

from hosts.bed import Bed, compile_link
from hosts.job import Job
from support.programs import ranks

from group_embedding import testing

WHERE = {1: "a", 2: "ab", 3: "abc", 4: "aabb"}  # the host of each rank, by their number


class HostRanks(ranks.Ranks):
    """`ranks.Ranks`, each on the host of a `Bed` that `where` names."""

    def __init__(self, starter, bed, where):
        super().__init__(starter, len(where))
        self._bed, self._where = bed, where

    def _make_job(self, folder):
        owner = 1  # the process of the host that ends with the bed
        arguments = folder, owner
        where = self._bed, self._starter, self._where
        return Job(*where, folder / "job", testing._serve, arguments, timeout=86400)


@contextlib.contextmanager
def ranks_on_hosts(starter, num_ranks):
    """`with ranks_on_hosts(starter, 4) as ranks`: two on each of two hosts; see `WHERE`."""
    where = WHERE[num_ranks]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        compile_link(folder / "link")
        with Bed(folder / "bed", folder / "link", len(set(where))) as bed:
            yield HostRanks(starter, bed, where)
