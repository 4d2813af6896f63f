"""The record that makes a published version exist: what the version is, and which files it has.

docs/reference/deltas.md has the format byte by byte.
"""

import io
import struct
from typing import BinaryIO, NamedTuple

from group_embedding.ops import core

BASE, DELTA, ROLLBACK = 1, 2, 3
KINDS = {BASE: "base", DELTA: "delta", ROLLBACK: "rollback"}
ROWS, VARIABLES, MODEL_FILE = 1, 2, 3  # kinds of files
_VERSION, _FILE = 16, 17  # kinds of sections
_VERSION_FIELDS = struct.Struct("<qqQqQqqq")
_FILE_FIELDS = struct.Struct("<iiqIQ")
_MAX_SECTION_BYTES = 1 << 16


class FileEntry(NamedTuple):
    """A file of a version.

    Attributes:
        kind: ROWS, VARIABLES or MODEL_FILE.
        path: Its name in the version's folder; of a MODEL_FILE relative to the base's.
        table: The table's name, of ROWS.
        part, num_parts: The rank that wrote ROWS, and the number of ranks.
        bytes, crc, id: What the content is checked against.
    """

    kind: int
    path: str
    table: str
    part: int
    num_parts: int
    bytes: int
    crc: int
    id: int


class Record(NamedTuple):
    """The content of `COMMIT`: the description of a version.

    Attributes:
        kind: BASE, DELTA or ROLLBACK.
        model: The name that the publisher was given.
        version: Its number.
        parent, parent_base_id: What the files of rows and variables are applied to; -1 and 0: none.
        base, base_id: The version of the newest base, and the number drawn for it.
        content: The version whose content this one has.
        step: The trainer's step; -1: not known.
        time: Microseconds since 1970 UTC.
        files: Its files.
    """

    kind: int
    model: str
    version: int
    parent: int
    parent_base_id: int
    base: int
    base_id: int
    content: int
    step: int
    time: int
    files: tuple[FileEntry, ...] = ()


class DamagedVersion(ValueError):
    """A file of a version is missing, damaged, or not the version's; the message names the file."""


def encode(record: Record) -> bytes:
    """The content of `COMMIT`."""
    sections = [(_VERSION, _version_payload(record))]
    sections += [(_FILE, _file_payload(file)) for file in record.files]
    content, _ = core().encode_sections(sections)
    return content


def decode(content: bytes, path: str) -> Record:
    """The record in the content of `COMMIT`, which lies at `path`.

    Raises:
        DamagedVersion: The content is not a record.
    """
    try:
        sections = list(
            core().SectionFile(path, _MAX_SECTION_BYTES, open=lambda _: io.BytesIO(content))
        )
        if not sections or sections[0][0] != _VERSION:
            raise ValueError("it does not begin with a version")
        if any(kind != _FILE for kind, _ in sections[1:]):
            raise ValueError("it has sections that are not files")
        record = _version_of(_Fields(sections[0][1]))
        return record._replace(files=tuple(_file_of(_Fields(p)) for _, p in sections[1:]))
    except (RuntimeError, ValueError, struct.error) as error:
        raise DamagedVersion(f"'{path}' is damaged: {error}") from None


def check_file(entry: FileEntry, opened: BinaryIO, path: str) -> None:
    """Reads a file of the SavedModel to its end.

    Raises:
        DamagedVersion: The file is not the one that the record names.
    """
    size, crc = 0, 0
    while block := opened.read(1 << 20):
        size += len(block)
        crc = core().crc32c(block, crc)
    if (size, crc) != (entry.bytes, entry.crc):
        raise DamagedVersion(
            f"'{path}' is damaged: expected {entry.bytes} bytes with checksum {entry.crc:08x}, got "
            f"{size} bytes with {crc:08x}"
        )


def _version_payload(record):
    return (
        struct.pack("<I", record.kind)
        + _text(record.model)
        + _VERSION_FIELDS.pack(
            record.version,
            record.parent,
            record.parent_base_id,
            record.base,
            record.base_id,
            record.content,
            record.step,
            record.time,
        )
    )


def _version_of(fields):
    kind, model = fields.number("<I"), fields.text()
    record = Record(kind, model, *fields.unpack(_VERSION_FIELDS))
    fields.end()
    is_good = kind in KINDS and record.version > 0 and record.base_id != 0
    if not is_good or not record.base <= record.version:
        raise ValueError("it describes a version that there cannot be")
    return record


def _file_payload(file):
    return (
        struct.pack("<I", file.kind)
        + _text(file.path)
        + _text(file.table)
        + _FILE_FIELDS.pack(file.part, file.num_parts, file.bytes, file.crc, file.id)
    )


def _file_of(fields):
    kind, path, table = fields.number("<I"), fields.text(), fields.text()
    entry = FileEntry(kind, path, table, *fields.unpack(_FILE_FIELDS))
    fields.end()
    names = path.split("/")
    is_plain = len(names) == 1 or kind == MODEL_FILE
    if kind not in (ROWS, VARIABLES, MODEL_FILE) or not is_plain or {"", ".", ".."} & set(names):
        raise ValueError(f"it names a file that there cannot be, '{path}'")
    return entry


def _text(text):
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded


class _Fields:
    """Takes fields from the front of bytes."""

    def __init__(self, payload):
        self._payload = payload
        self._at = 0

    def unpack(self, layout):
        values = layout.unpack_from(self._payload, self._at)
        self._at += layout.size
        return values

    def number(self, layout):
        return self.unpack(struct.Struct(layout))[0]

    def text(self):
        size = self.number("<I")
        text = self._payload[self._at : self._at + size]
        if len(text) < size:
            raise ValueError("a text ends behind its section")
        self._at += size
        return text.decode()

    def end(self):
        if self._at != len(self._payload):
            raise ValueError("a section is longer than its fields")
