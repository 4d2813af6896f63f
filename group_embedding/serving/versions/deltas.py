"""Reads versions from a target, by the rules of readers in docs/reference/deltas.md."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from group_embedding.checkpoint import checkpoint_files
from group_embedding.ops import core
from group_embedding.serving.stores import records
from group_embedding.serving.stores.records import DamagedVersion, FileEntry, Record
from group_embedding.serving.stores.targets import COMMIT, Target
from group_embedding.serving.versions import variables_file


class NotConsecutive(ValueError):
    """A version does not follow the content that it would be applied to."""


class Content(NamedTuple):
    """The rows and variables of a model at a version.

    Attributes:
        record: The record of the version.
        tables: {name: {key: the bytes of its row}}.
        variables: {key in the checkpoint of the base: value}.
    """

    record: Record
    tables: dict[str, dict[int, bytes]]
    variables: dict[str, np.ndarray]


class Reader:
    """Reads and verifies versions.

    Args:
        target: Where they are.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    def versions(self) -> list[int]:
        """The numbers of all versions, rising."""
        return self._target.versions()

    def record(self, version: int) -> Record:
        """The record of a version.

        Raises:
            DamagedVersion: The record is missing or damaged.
        """
        path = self._target.path(version, COMMIT)
        try:
            record = records.decode(self._target.record(version), path)
        except OSError as error:
            raise DamagedVersion(f"'{path}' cannot be read: {error}") from None
        if record.version != version:
            raise DamagedVersion(f"'{path}' is damaged: it is of version {record.version}")
        return record

    def chain(self, version: int) -> list[Record]:
        """The records that make the content of a version: a base, and the deltas after it.

        Raises:
            DamagedVersion, NotConsecutive: One of them is missing, damaged, or does not follow.
        """
        record = self.record(version)
        if record.kind == records.ROLLBACK:
            if not record.content < version:
                raise NotConsecutive(f"version {version}: expected a rollback to a version before")
            return self.chain(record.content)
        chain = [self.record(number) for number in range(record.base, version)] + [record]
        for before, after in zip(chain, chain[1:]):
            _check_follows(before, after)
        if chain[0].kind != records.BASE:
            raise NotConsecutive(f"version {chain[0].version}: expected a base, got none")
        return chain

    def verify(self, record: Record) -> list[dict[str, Any]]:
        """Reads all files of a version to their ends.

        Returns:
            A dict for each file with rows: table, num_rows, num_erased.

        Raises:
            DamagedVersion: A file is missing, damaged, or not the version's.
        """
        tables = []
        for file in record.files:
            if file.kind == records.ROWS:
                tables.append(self._verify_rows(record, file))
            elif file.kind == records.VARIABLES:
                self._variables(record, file)
            else:
                path = os.path.join(self._target.base_path(record.version), file.path)
                try:
                    with self._target.open(path) as opened:
                        records.check_file(file, opened, path)
                except OSError as error:
                    raise DamagedVersion(f"'{path}' cannot be read: {error}") from None
        _check_parts(record)
        return tables

    def read(self, version: int) -> Content:
        """The content of a version, from its base and the deltas after it, all of them verified.

        Raises:
            DamagedVersion, NotConsecutive: As `chain` and `verify`.
        """
        base, *deltas = self.chain(version)
        content = self._read_base(base)
        for delta in deltas:
            content = self.apply(content, delta)
        return content._replace(record=self.record(version))

    def apply(self, content: Content, record: Record) -> Content:
        """The content of the version that a record describes, from that of the version before.

        Raises:
            NotConsecutive: The version does not follow the content.
            DamagedVersion: A file is missing or damaged.
        """
        if record.kind == records.ROLLBACK:
            return self.read(record.version)
        _check_follows(content.record, record)
        self.verify(record)
        tables = {name: dict(rows) for name, rows in content.tables.items()}
        variables = dict(content.variables)
        for file in record.files:
            if file.kind == records.ROWS:
                if file.table not in tables:
                    raise NotConsecutive(f"the base has no table '{file.table}'")
                self._apply_rows(record, file, tables[file.table])
            elif file.kind == records.VARIABLES:
                for key, change in self._variables(record, file).items():
                    variables[key] = _changed(variables, key, change)
        return Content(record, tables, variables)

    def _path(self, record, file):
        return self._target.path(record.version, file.path)

    def _verify_rows(self, record: Record, file: FileEntry) -> dict[str, Any]:
        path = self._path(record, file)
        expected = {"changes_only": True, "bytes": file.bytes, "crc": file.crc, "id": file.id}
        try:
            found = core().verify_table_file(path, file.table, expected, open=self._target.open)
        except (OSError, RuntimeError) as error:
            raise DamagedVersion(f"'{path}' is damaged: {error}") from None
        if (found["part"], found["num_parts"]) != (file.part, file.num_parts) or found["slots"]:
            raise DamagedVersion(f"'{path}' is damaged: it is another part, or has slots")
        return found

    def _apply_rows(self, record, file, rows):
        for block in core().TableFile(self._path(record, file), open=self._target.open):
            for key in block["erased"].tolist():
                rows.pop(key, None)
            _add_rows(block, rows)

    def _variables(self, record, file):
        path = self._path(record, file)
        return variables_file.decode(path, file, lambda: self._target.open(path))

    def _read_base(self, record):
        self.verify(record)
        prefix = os.path.join(self._target.base_path(record.version), "variables", "variables")
        tables: dict[str, dict[int, bytes]] = {}
        for table in checkpoint_files.tables(prefix):
            rows = tables.setdefault(table["table"], {})
            for file in table["files"]:
                for block in checkpoint_files.table_file(file["path"]):
                    _add_rows(block, rows)
        saved = tf.train.load_checkpoint(prefix)
        names = saved.get_variable_to_dtype_map()
        variables = {
            name: saved.get_tensor(name) for name, dtype in names.items() if dtype != tf.string
        }
        return Content(record, tables, variables)


def _check_follows(before, after):
    """Refuses a version that cannot be applied to the one before."""
    expected = (before.version, before.base_id, before.version + 1)
    if (after.parent, after.parent_base_id, after.version) != expected:
        raise NotConsecutive(
            f"version {after.version}, of parent {after.parent} of base {after.parent_base_id:x}: "
            f"expected the one that follows version {before.version} of base {before.base_id:x}"
        )
    if after.kind == records.DELTA and after.base_id != before.base_id:
        raise NotConsecutive(f"version {after.version}: expected a delta of the base before")


def _check_parts(record):
    """Refuses a version that lacks the rows of a rank."""
    parts: dict[str, list[FileEntry]] = {}
    for file in record.files:
        if file.kind == records.ROWS:
            parts.setdefault(file.table, []).append(file)
    for table, files in parts.items():
        numbers = [file.part for file in files]
        counts = {file.num_parts for file in files}
        if len(counts) > 1 or len(set(numbers)) < len(numbers) or max(numbers) >= min(counts):
            raise DamagedVersion(
                f"version {record.version} is damaged: table '{table}' has parts {numbers} of "
                f"{sorted(counts)}"
            )


def _add_rows(block, rows):
    for key, values in zip(block["keys"].tolist(), block["values"]):
        rows[key] = values.tobytes()


def _changed(variables, key, change):
    """The value of a variable after a change."""
    former = variables.get(key)
    if former is None or former.shape != tuple(change.shape):
        found = "none" if former is None else f"one of shape {former.shape}"
        raise NotConsecutive(f"variable '{key}': expected one of shape {change.shape}, got {found}")
    if former.dtype != change.values.dtype:
        raise NotConsecutive(
            f"variable '{key}': expected {former.dtype}, got {change.values.dtype}"
        )
    if change.rows is None:
        return change.values
    value = former.copy()
    value[change.rows] = change.values
    return value
