"""Versions of a model, written to a target one after the other."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from group_embedding.ops import core
from group_embedding.serving.publish.row_hashes import RowHashes
from group_embedding.serving.stores import records
from group_embedding.serving.stores.records import FileEntry, Record
from group_embedding.serving.stores.targets import BASE_RECORD, Target, TargetError
from group_embedding.serving.versions import variables_file
from group_embedding.serving.versions.deltas import Reader
from group_embedding.serving.versions.old_versions import named_files, whole_records
from group_embedding.serving.versions.rewrite_model import rewrite_base
from group_embedding.serving.versions.variables_file import VariableChange

# Variables of at least so many bytes, with at least two dims, are tables by row number.
_ROW_TABLE_BYTES = 1 << 20
_MOST_UNKNOWN = 3  # commits that failed, and whose outcome is still asked for


class LostVersions(TargetError):
    """A target no longer has a version that it had acknowledged."""


class Content(NamedTuple):
    """The content of a version.

    Attributes:
        step: The trainer's step; -1: not known.
        base: A local folder with a SavedModel; None: the version is a delta.
        tables: {name: `table_changes.Changes`} since the version before; None: it has no parent.
        variables: {key: value} of all variables that this process has.
        rewrites: Whether the version is a base, which is written from the base before it, the
            deltas since and this version's own changes.
    """

    step: int
    base: str | None
    tables: dict[str, Any] | None
    variables: dict[str, np.ndarray]
    rewrites: bool = False

    @property
    def is_base(self) -> bool:
        return self.base is not None or self.rewrites


class OtherRanks(NamedTuple):
    """The content of a version that is not rank 0's own.

    Attributes:
        files: The files of rows that other ranks have put into the version.
        changes: Changed rows of tables by row number that are spread over ranks.
    """

    files: list[FileEntry]
    changes: list[VariableChange]


class VersionWriter:
    """Writes versions; the only one that does, as it has the target's lock.

    Args:
        target: Where to.
        model: The name of the model, for records.

    Attributes:
        last: The record of the version that was written last; None: none yet.
    """

    def __init__(self, target: Target, model: str) -> None:
        self._target = target
        self._model = model
        self.last: Record | None = None
        self.num_deltas = 0  # since the newest base
        self._hashes: dict[str, RowHashes] = {}  # of the rows in `last`
        # What commits that failed would have written: one may have happened all the same.
        self._unknown: list[tuple[Record, dict[str, RowHashes]]] = []
        target.lock()
        target.remove_leftovers(named_files(target))

    def is_newest(self) -> bool:
        """Returns whether this writer wrote the newest version of the target."""
        newest = self._target.newest()
        self._settle(newest)
        return self.last is not None and newest == self.last.version

    def write(
        self,
        content: Content,
        parts: dict[str, tuple[int, int]] | None = None,
        other_ranks: Callable[[], OtherRanks] | None = None,
        version: int | None = None,
    ) -> Record:
        """Commits a version, and returns its record.

        Args:
            content: What this process publishes.
            parts: {name of a table: (its part, number of parts)}, of tables over ranks.
            other_ranks: Returns what other ranks publish once they have written it.
            version: The number that other ranks expect; None: there are none.

        Raises:
            TargetError: Another writer's version is the newest, and `content` is a delta.
            OSError: The target fails.
        """
        newest = self._target.newest()
        self._settle(newest)
        tables = content.tables
        has_parent = tables is not None
        if has_parent and self.last is not None and newest < self.last.version:
            raise LostVersions(
                f"target '{self._target.url}': expected version {self.last.version}, which it had "
                f"acknowledged, got {newest} as the newest; the next version is a base"
            )
        if has_parent and (self.last is None or newest != self.last.version):
            raise TargetError(self._of_another_writer(newest))
        if self.last is not None:
            newest = max(newest, self.last.version)  # servers never go back
        if version not in (None, newest + 1):
            raise TargetError(
                f"target '{self._target.url}': expected to write version {version}, got "
                f"{newest} as the newest: a commit that seemed to fail had not; publish again"
            )
        record = self._new_record(newest + 1, content, has_parent)
        files: list[FileEntry] = []
        changes, hashes = _changes_of(content.variables, self._hashes if has_parent else {})
        if tables is not None:
            files += put_tables(self._target, record.version, tables, parts or {})
            if other_ranks is not None:
                others = other_ranks()
                files += others.files
                changes += others.changes
            files += put_variables(self._target, record.version, changes)
        if content.is_base:
            folder = content.base or self._rewritten(record, files, changes)
            files = self._put_base(record, folder) + files
        record = record._replace(files=tuple(files))
        self._unknown = [*self._unknown[-_MOST_UNKNOWN:], (record, hashes)]
        self._target.commit(record.version, records.encode(record))
        self._is_written(record, hashes)
        return record

    def _settle(self, newest):
        """Finds out whether a commit that failed has happened."""
        for record, hashes in self._unknown:
            if newest != record.version or self._target.record(newest) != records.encode(record):
                continue
            # The next delta has all rows of keyed tables that changed since the version before.
            self._is_written(record, hashes)
            return

    def _is_written(self, record, hashes):
        self.num_deltas = 0 if record.kind == records.BASE else self.num_deltas + 1
        self.last, self._hashes, self._unknown = record, hashes, []

    def _of_another_writer(self, newest):
        wrote = "none" if self.last is None else f"version {self.last.version}"
        found = "none"
        if newest:
            record = whole_records(self._target).get(newest)
            kind = "damaged version" if record is None else records.KINDS[record.kind]
            found = f"version {newest}, a {kind}"
        return (
            f"target '{self._target.url}': expected the newest version to be what this publisher "
            f"wrote last, {wrote}, got {found}; publish_base() goes on from there"
        )

    def _new_record(self, version, content, has_parent):
        is_base = content.is_base
        base_id = secrets.randbits(63) | 1 if is_base else self.last.base_id
        return Record(
            kind=records.BASE if is_base else records.DELTA,
            model=self._model,
            version=version,
            parent=version - 1 if has_parent else -1,
            parent_base_id=self.last.base_id if has_parent else 0,
            base=version if is_base else self.last.base,
            base_id=base_id,
            content=version,
            step=content.step,
            time=time.time_ns() // 1000,
        )

    def _rewritten(self, record, files, changes):
        """A folder with the base before, the deltas since, and this version's files."""
        own = {}
        for file in files:
            if file.kind == records.ROWS:
                path = self._target.path(record.version, file.path)
                own.setdefault(file.table, []).append(path)
        chain = Reader(self._target).chain(record.version - 1)
        folder = self._target.work_folder()
        try:
            rewrite_base(self._target, chain, own, changes, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _put_base(self, record, folder):
        path = os.path.join(folder, BASE_RECORD)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(records.encode(record))
        entries = [_model_file(folder, name) for name in _files_below(folder)]
        self._target.put_base(record.version, folder)
        return entries


def put_tables(
    target: Target, version: int, tables: dict[str, Any], parts: dict[str, tuple[int, int]]
) -> list[FileEntry]:
    """Writes the files of changed rows of a version; returns their entries for the record.

    Args:
        tables: {name: `table_changes.Changes`}.
        parts: {name: (part, number of parts)}, of tables that are spread over ranks. These have a
            file also where nothing changed, as a version has all parts of a table or none.
    """
    attempt = secrets.token_hex(4)
    entries = []
    for number, (table, changes) in enumerate(tables.items()):
        size, crc, file_id, num_rows, num_erased = changes.sum.tolist()
        index, num_parts = parts.get(table, (0, 1))
        if num_rows + num_erased == 0 and num_parts == 1:
            continue
        name = f"rows-{number}-{index}-{attempt}"
        target.put(version, name, changes.file)
        file_id &= 2**64 - 1
        entries.append(FileEntry(records.ROWS, name, table, index, num_parts, size, crc, file_id))
    return entries


def put_variables(target: Target, version: int, changes: list[VariableChange]) -> list[FileEntry]:
    """Writes the file of changed variables of a version, if there are any; returns its entry."""
    if not changes:
        return []
    content, found = variables_file.encode(changes)
    name = f"variables-{secrets.token_hex(4)}"
    target.put(version, name, content)
    return [FileEntry(records.VARIABLES, name, "", 0, 1, found["bytes"], found["crc"], 0)]


def _changes_of(variables, former):
    """The changes of variables, and {key: RowHashes} of those that are tables by row number.

    Args:
        variables: {key: value}.
        former: The RowHashes that rows are compared with.
    """
    changes, hashes = [], {}
    for key, value in variables.items():
        rows = None
        if key in former:
            rows, hashes[key] = former[key].changed(value)
        elif value.ndim > 1 and value.nbytes >= _ROW_TABLE_BYTES:
            hashes[key] = RowHashes(value)
        if rows is None or len(rows):
            values = value if rows is None else value[rows]
            changes.append(VariableChange(key, value.shape, rows, values))
    return changes, hashes


def _files_below(folder):
    return sorted(
        os.path.relpath(os.path.join(path, name), folder)
        for path, _, names in os.walk(folder)
        for name in names
    )


def _model_file(folder, name):
    size, crc = 0, 0
    with open(os.path.join(folder, name), "rb") as file:
        while block := file.read(1 << 20):
            size += len(block)
            crc = core().crc32c(block, crc)
    return FileEntry(records.MODEL_FILE, name.replace(os.sep, "/"), "", 0, 1, size, crc, 0)
