"""Files and manifests of keyed tables in Python, as the README of checkpoints has them: taken
apart, and put together again with right checksums."""

import struct
from typing import Any, NamedTuple

MAGIC, MANIFEST_MAGIC = b"\x89GETBL\r\n", b"\x89GEMAN\r\n"
FOOTER, HEADER, INITIAL_ROWS, ROWS, ERASED, COUNTED, COUNTERS, TOTALS = range(8)
# The header's fields before its slots, after the name of the table.
HEADER_FIELDS = {
    "save_id": "Q",
    "file_id": "Q",
    "part": "i",
    "num_parts": "i",
    "changes_only": "i",
    "step": "q",
    "last_step": "q",
    "minute": "q",
    "dim": "i",
    "dtype": "i",
    "key_dtype": "i",
    "distribution": "i",
    "a": "f",
    "b": "f",
    "seed": "Q",
    "matrix_rows": "q",
    "no_row_value": "f",
    "admission": "i",
    "min_count": "q",
    "num_counters": "q",
    "num_hashes": "i",
    "counter_bytes": "i",
}

SINCE_VERSION_4 = ("last_step", "minute")


def _make_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _make_table()


def crc32c(data):
    state = 0xFFFFFFFF
    for byte in data:
        state = state >> 8 ^ _TABLE[(state ^ byte) & 0xFF]
    return state ^ 0xFFFFFFFF


class Section(NamedTuple):
    kind: int
    payload: bytes
    index: Any = None  # None: its number in the file
    claimed_bytes: Any = None  # None: those of the payload


def sections_of(data):
    """The Sections of a whole file."""
    found, at = [], 16
    while at < len(data):
        kind, _, size = struct.unpack_from("<IIQ", data, at)
        found.append(Section(kind, data[at + 24 : at + 24 + size]))
        at += 24 + size
    return found


def file_of(sections, version=4):
    """A file whose checksums are all right."""
    preamble = MAGIC + struct.pack("<I", version)
    parts = [preamble, struct.pack("<I", crc32c(preamble))]
    for number, section in enumerate(sections):
        index = number if section.index is None else section.index
        claimed = len(section.payload) if section.claimed_bytes is None else section.claimed_bytes
        frame = struct.pack("<IIQI", section.kind, index, claimed, crc32c(section.payload))
        parts += [frame, struct.pack("<I", crc32c(frame)), section.payload]
    return b"".join(parts)


class Header(NamedTuple):
    table: bytes
    fields: dict
    slots: list  # of (name, width, type, initial value)


def header_of(payload):
    (size,) = struct.unpack_from("<I", payload)
    layout = "<" + "".join(HEADER_FIELDS.values())
    at = 4 + size
    fields = dict(zip(HEADER_FIELDS, struct.unpack_from(layout, payload, at)))
    at += struct.calcsize(layout)
    (num_slots,) = struct.unpack_from("<I", payload, at)
    at += 4
    slots = []
    for _ in range(num_slots):
        (length,) = struct.unpack_from("<I", payload, at)
        name = payload[at + 4 : at + 4 + length]
        slots.append((name, *struct.unpack_from("<iif", payload, at + 4 + length)))
        at += 4 + length + 12
    return Header(payload[4 : 4 + size], fields, slots)


def header_payload(header, version=4):
    out = struct.pack("<I", len(header.table)) + header.table
    names = [name for name in HEADER_FIELDS if version >= 4 or name not in SINCE_VERSION_4]
    layout = "<" + "".join(HEADER_FIELDS[name] for name in names)
    out += struct.pack(layout, *(header.fields[name] for name in names))
    out += struct.pack("<I", len(header.slots))
    for name, *numbers in header.slots:
        out += struct.pack("<I", len(name)) + name + struct.pack("<iif", *numbers)
    return out


def manifest_of(content):
    """A manifest of what lies between the version and the checksum, with a right checksum."""
    content = MANIFEST_MAGIC + struct.pack("<I", 4) + content
    return content + struct.pack("<I", crc32c(content))


def manifest_content(table, step, files):
    """files: (suffix, changes_only, bytes, crc, id) each."""
    out = struct.pack("<I", len(table)) + table + struct.pack("<qI", step, len(files))
    for suffix, *numbers in files:
        out += struct.pack("<I", len(suffix)) + suffix + struct.pack("<IqIQ", *numbers)
    return out
