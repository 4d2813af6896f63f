"""The files of each rank in the folder of a version, and the record that lists them for rank 0."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from group_embedding.serving.publish.shard_rows import merged
from group_embedding.serving.publish.version_writer import OtherRanks, put_tables, put_variables
from group_embedding.serving.stores import records
from group_embedding.serving.stores.records import DamagedVersion, FileEntry, Record
from group_embedding.serving.stores.targets import Target, TargetError
from group_embedding.serving.versions import variables_file
from group_embedding.serving.versions.variables_file import VariableChange

_POLL_SECONDS = 0.005


class PartFiles:
    """The parts of versions that are not committed.

    Args:
        target: Where each rank finds the files of versions that are not committed.
        num_ranks: The number of ranks.
    """

    def __init__(self, target: Target, num_ranks: int) -> None:
        self._target = target
        self._num_ranks = num_ranks

    def put(
        self,
        rank: int,
        version: int,
        attempt: int,
        tables: dict[str, Any],
        parts: dict[str, tuple[int, int]],
        changes: list[VariableChange],
    ) -> None:
        """Writes what a rank other than 0 publishes."""
        files = put_tables(self._target, version, tables, parts)
        files += put_variables(self._target, version, changes)
        record = Record(
            records.DELTA, "", version, -1, 0, version, attempt, version, -1, 0, tuple(files)
        )
        self._target.put(version, _name_of(rank, attempt), records.encode(record))

    def wait(
        self, version: int, attempt: int, is_cancelled: threading.Event, seconds: float
    ) -> OtherRanks:
        """Waits on rank 0 until all other ranks have written.

        Raises:
            TargetError: A rank has not within `seconds`, or failed.
        """
        end = time.monotonic() + seconds
        files: list[FileEntry] = []
        changes: list[VariableChange] = []
        for rank in range(1, self._num_ranks):
            name = _name_of(rank, attempt)
            while (record := self._read(version, name)) is None:
                if is_cancelled.is_set():
                    raise TargetError("expected all ranks to write their rows, got one that failed")
                if time.monotonic() > end:
                    raise TargetError(
                        f"target '{self._target.url}': expected the rows of rank {rank} within "
                        f"{seconds:g} s, got none"
                    )
                time.sleep(_POLL_SECONDS)
            files += [file for file in record.files if file.kind == records.ROWS]
            changes += self._changes(record)
        return OtherRanks(files, changes)

    def _read(self, version, name):
        """The record of a rank's part; None: it is not there, or not whole."""
        path = self._target.path(version, name)
        with contextlib.suppress(OSError, DamagedVersion), self._target.open(path) as file:
            return records.decode(file.read(), path)

    def _changes(self, record):
        found = []
        for file in record.files:
            if file.kind == records.VARIABLES:
                path = self._target.path(record.version, file.path)
                changes = variables_file.decode(path, file, lambda path=path: self._open(path))
                found += changes.values()
        return found

    def _open(self, path):
        return self._target.open(path)


def with_own(others: OtherRanks, changes: list[VariableChange]) -> OtherRanks:
    """Adds rank 0's rows of tables that are spread by row number to those of other ranks."""
    return OtherRanks(others.files, merged([*changes, *others.changes]))


def _name_of(rank, attempt):
    return f"part-{rank}-{attempt:016x}"
