"""The records of versions in a topic, and which commit records count.

docs/reference/deltas.md has the format byte by byte.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from group_embedding.serving.stores import records
from group_embedding.serving.stores.records import Record

CHUNK_BYTES = 900_000  # a broker takes records of 1 MB, unless it is set otherwise
COMMIT_KEY = b"commit"
ATTEMPT_BYTES = 16
_MAGIC = b"GEKAFKA1"
_COMMIT = struct.Struct("<8s16sII")  # magic, attempt, bytes of a chunk, number of files
_CHUNK = struct.Struct("<16sII")  # attempt, number of the file, number of the chunk
_KEPT_BASES = 3


class Commit(NamedTuple):
    """A version's commit record.

    Attributes:
        record: What the version is.
        content: The same, as `COMMIT` has it.
        attempt: The 16 bytes that its chunks are known by.
        chunk_bytes: The size of each chunk but a file's last.
        offsets: For each file, an offset at or before that of its first chunk.
        offset: That of the commit record.
    """

    record: Record
    content: bytes
    attempt: bytes
    chunk_bytes: int
    offsets: tuple[int, ...]
    offset: int


def chunk_key(attempt: bytes, number: int, index: int) -> bytes:
    """The key of a file's chunk."""
    return _CHUNK.pack(attempt, number, index)


def encode_commit(attempt: bytes, offsets: Sequence[int], content: bytes) -> bytes:
    """The value of a commit record."""
    head = _COMMIT.pack(_MAGIC, attempt, CHUNK_BYTES, len(offsets))
    return head + struct.pack(f"<{len(offsets)}q", *offsets) + content


def decode_commit(key: bytes | None, value: bytes | None, offset: int) -> Commit | None:
    """The commit record at an offset; None: the record is another one, or damaged."""
    if key != COMMIT_KEY or value is None or not value.startswith(_MAGIC):
        return None
    try:
        _, attempt, chunk_bytes, count = _COMMIT.unpack_from(value)
        offsets = struct.unpack_from(f"<{count}q", value, _COMMIT.size)
        content = value[_COMMIT.size + 8 * count :]
        record = records.decode(content, f"the record at offset {offset}")
    except (struct.error, records.DamagedVersion):
        return None
    if len(record.files) != count or chunk_bytes <= 0:
        return None
    return Commit(record, content, attempt, chunk_bytes, offsets, offset)


class CommitLog:
    """The commit records that count, in the order of their offsets.

    Attributes:
        newest: The version of the last one; 0: none yet.
        versions: {version: its commit record}; of those before the newest bases, none.

    Args:
        newest: The version in front of the first record that is taken; 0: it is not known.
        keeps_all: Whether `versions` has all versions.
    """

    def __init__(self, newest: int = 0, keeps_all: bool = False) -> None:
        self.newest = newest
        self._keeps_all = keeps_all
        self.versions: dict[int, Commit] = {}

    def take(self, commit: Commit) -> None:
        """Takes the next commit record of the topic, which may be one that does not count."""
        version = commit.record.version
        is_base = commit.record.kind == records.BASE
        begins_anew = is_base and commit.record.parent < 0 and version > self.newest
        if self.newest != 0 and version != self.newest + 1 and not begins_anew:
            return  # of a publisher that was not the first with its number
        self.versions[version] = commit
        self.newest = version
        if is_base and not self._keeps_all:
            self._forget()

    def _forget(self):
        """Bounds the memory: versions before the newest bases are read again if anybody asks."""
        bases = [v for v, c in self.versions.items() if c.record.kind == records.BASE]
        for version in list(self.versions) if len(bases) > _KEPT_BASES else ():
            if version < sorted(bases)[-_KEPT_BASES]:
                del self.versions[version]
