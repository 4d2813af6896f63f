"""The content of a target: whole records, the files that they name, and old versions."""

from __future__ import annotations

import contextlib

from group_embedding.serving.stores import records
from group_embedding.serving.stores.records import Record
from group_embedding.serving.stores.targets import COMMIT, Target


def whole_records(target: Target) -> dict[int, Record]:
    """{version: its record}, of the versions of a target whose record is whole."""
    found = {}
    for version in target.versions():
        path = target.path(version, COMMIT)
        with contextlib.suppress(records.DamagedVersion, FileNotFoundError):
            found[version] = records.decode(target.record(version), path)
    return found


def named_files(target: Target) -> set[str]:
    """The paths of files that records name; of damaged records, all files of the version."""
    whole, named = whole_records(target), set()
    for version in target.versions():
        names = [file.path for file in whole[version].files] if version in whole else None
        if names is None:
            names = target.names(version)
        named |= {target.path(version, name) for name in names}
    return named


def retire(target: Target, keep_bases: int) -> None:
    """Removes the versions before the newest `keep_bases` bases.

    The highest goes first: a version is read by the versions before it, and whenever the process
    ends, those that are still there are whole.
    """
    found = whole_records(target)
    bases = [n for n, record in found.items() if record.kind == records.BASE]
    for version in sorted(found, reverse=True):
        if len(bases) > keep_bases and version < sorted(bases)[-keep_bases]:
            target.remove(version)
