"""Ranks of one host: one process per rank, which find each other through a folder."""

import multiprocessing
import os
import tempfile
import time
import traceback
from pathlib import Path


class Meeting:
    """Exchanges small data between ranks through files, before they have a communicator."""

    def __init__(self, folder, rank, num_ranks):
        self.folder, self.rank, self.num_ranks = Path(folder), rank, num_ranks

    def all_gather(self, name, value, seconds=120):
        """Returns the bytes that each rank passed under `name`, in the order of ranks."""
        self._path(name, self.rank, ".new").write_bytes(value)
        os.rename(self._path(name, self.rank, ".new"), self._path(name, self.rank))
        late = time.monotonic() + seconds
        while not all(self._path(name, n).exists() for n in range(self.num_ranks)):
            if time.monotonic() > late:
                raise TimeoutError(f"{name}: not all of {self.num_ranks} ranks came")
            time.sleep(0.002)
        return [self._path(name, n).read_bytes() for n in range(self.num_ranks)]

    def part(self, name):
        """A Meeting of the same ranks whose names are independent of this one's."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return Meeting(folder, self.rank, self.num_ranks)

    def _path(self, name, rank, suffix=""):
        return self.folder / f"{name}.{rank}{suffix}"


class Ranks:
    """A process per rank, which stay for the next call until they are closed or one fails."""

    def __init__(self, num_ranks):
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._results = context.Queue()
        self._calls = [context.Queue() for _ in range(num_ranks)]
        self._meeting = Meeting(self._folder.name, None, num_ranks)
        self._num_calls = 0
        self._processes = [
            context.Process(
                target=_serve, args=(calls, self._results, self._folder.name, rank, num_ranks)
            )
            for rank, calls in enumerate(self._calls)
        ]
        for process in self._processes:
            process.daemon = True  # ends with this one
            process.start()

    @property
    def are_alive(self):
        return all(process.is_alive() for process in self._processes)

    def run(self, function, *args, seconds=120):
        """Calls `function(meeting, *args)` on each rank, and returns the results in the order of
        ranks.

        Raises:
            RuntimeError: a rank raised, ended, or was not done in time; all are ended.
        """
        name = f"call_{self._num_calls}"
        self._num_calls += 1
        self._meeting.part(name)
        for calls in self._calls:
            calls.put((name, function, args))
        try:
            return self._collect(time.monotonic() + seconds)
        except BaseException:
            self.close()
            raise

    def close(self):
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _collect(self, late):
        returned = {}
        while len(returned) < len(self._processes):
            if not self._results.empty():
                rank, error, value = self._results.get()
                if error:
                    raise RuntimeError(f"rank {rank}:\n{error}")
                returned[rank] = value
            elif time.monotonic() > late:
                missing = set(range(len(self._processes))) - {*returned}
                raise RuntimeError(f"not done in time: ranks {missing}")
            elif not self.are_alive:
                codes = [process.exitcode for process in self._processes]
                raise RuntimeError(f"exit codes of the ranks: {codes}")
            else:
                time.sleep(0.002)
        return [returned[rank] for rank in range(len(self._processes))]


def _serve(calls, results, folder, rank, num_ranks):
    meeting = Meeting(folder, rank, num_ranks)
    while True:
        name, function, args = calls.get()
        try:
            value = function(meeting.part(name), *args)
        except BaseException:
            results.put((rank, traceback.format_exc(), None))
            raise
        results.put((rank, None, value))
