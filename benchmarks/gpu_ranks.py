"""Ranks of one host: a process for each, which meet in a folder."""

import multiprocessing
import os
import tempfile
import time
import traceback
from pathlib import Path


class Meeting:
    """Where the ranks exchange small things before they have anything better."""

    def __init__(self, folder, rank, num_ranks):
        self.folder, self.rank, self.num_ranks = Path(folder), rank, num_ranks

    def all_gather(self, name, value, seconds=120):
        """The bytes that each rank gives under that name, those of rank 0 first."""
        self._path(name, self.rank, ".new").write_bytes(value)
        os.rename(self._path(name, self.rank, ".new"), self._path(name, self.rank))
        late = time.monotonic() + seconds
        while not all(self._path(name, n).exists() for n in range(self.num_ranks)):
            if time.monotonic() > late:
                raise TimeoutError(f"{name}: not all of {self.num_ranks} ranks came")
            time.sleep(0.002)
        return [self._path(name, n).read_bytes() for n in range(self.num_ranks)]

    def part(self, name):
        """The same ranks, with names of their own."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return Meeting(folder, self.rank, self.num_ranks)

    def _path(self, name, rank, suffix=""):
        return self.folder / f"{name}.{rank}{suffix}"


def run_ranks(num_ranks, function, *args, seconds=120):
    """Runs `function(meeting, *args)` in a process per rank; what each returned, rank 0 first.

    Raises:
        RuntimeError: a rank raised, ended, or was not done in time; the others are ended.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results = context.Queue()
        processes = [
            context.Process(
                target=_run_rank, args=(results, folder, rank, num_ranks, function, args)
            )
            for rank in range(num_ranks)
        ]
        for process in processes:
            process.start()
        try:
            return _collect(results, processes, time.monotonic() + seconds)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(results, processes, late):
    returned = {}
    while len(returned) < len(processes):
        if not results.empty():
            rank, error, value = results.get()
            if error:
                raise RuntimeError(f"rank {rank}:\n{error}")
            returned[rank] = value
        elif time.monotonic() > late:
            raise RuntimeError(
                f"not done in time: ranks {set(range(len(processes))) - {*returned}}"
            )
        elif any(p.exitcode not in (None, 0) for p in processes):
            raise RuntimeError(f"exit codes of the ranks: {[p.exitcode for p in processes]}")
        else:
            time.sleep(0.002)
    return [returned[rank] for rank in range(len(processes))]


def _run_rank(results, folder, rank, num_ranks, function, args):
    try:
        value = function(Meeting(folder, rank, num_ranks), *args)
    except BaseException:
        results.put((rank, traceback.format_exc(), None))
        raise
    results.put((rank, None, value))
