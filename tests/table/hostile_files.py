"""A process that reads files of tables that somebody made, checksums and all.

Run as: python hostile_files.py FOLDER SEED FIRST LAST: reads mutations [FIRST, LAST) of that seed.
Before each it writes to its output which one, so that who started it knows the one that ended it. A
mutation is refused with a RuntimeError, or read: then the table works.
"""

import os
import resource
import signal
import struct
import sys

import numpy as np
from support import core
from support.oracles import table_file_format as tf_format
from support.oracles.table_file_format import Section
from table.table_files import content, make_table, train

FILTERS = {
    "all": {},
    "counter": {"admission": "counter", "min_count": 3},
    "bloom": {
        "admission": "bloom",
        "min_count": 3,
        "num_counters": 100,
        "num_hashes": 3,
        "counter_bytes": 2,
    },
}
NUMBERS = [0, 1, 2, 3, 4, 5, 7, 8, 16, 255, 4096, 2**31 - 1, 2**32 - 1, 2**48, 2**62, 2**63 - 1]
NUMBERS += [-number for number in NUMBERS if number] + [-(2**31), -(2**63)]
MAX_BYTES = 400 << 20  # that a small file may take
SECONDS = 30


def base_files():
    """[(filter, what a small file of it holds)]."""
    found = []
    for name, options in FILTERS.items():
        rng = np.random.default_rng(1)
        table = make_table(**options)
        for step in range(3):
            train(table, rng.integers(0, 12, 20), step, rng)
        train(table, [100, 101, 102], 4, rng)
        for changes_only in (False, True):
            path = f"{name}.base"
            snapshot = table.snapshot(changes_only)
            core.write_table(snapshot, path, save_id=1 + changes_only, changes_only=changes_only)
            snapshot.keep()
            del snapshot
            with open(path, "rb") as file:
                found.append((name, file.read()))
            train(table, [3, 4, 5, 200, 200, 200], 5, rng)
            table.erase([6])
    return found


def mutate(rng, data):
    """A file of right checksums that says something else, and how it was made."""
    sections = tf_format.sections_of(data)
    said = []
    for _ in range(rng.integers(1, 4)):
        change = CHANGES[rng.integers(len(CHANGES))]
        said.append(f"{change.__name__}: {change(rng, sections)}")
    version = 4 if rng.random() < 0.95 else int(rng.integers(0, 6))
    return tf_format.file_of(sections, version), "; ".join(said)


def _pick(rng, sections):
    return int(rng.integers(len(sections)))


def _number(rng):
    return NUMBERS[rng.integers(len(NUMBERS))]


def _packed(layout, number):
    if layout == "f":
        return struct.pack("<f", np.float32(number))
    bits = 8 * struct.calcsize(layout)
    return (number % 2**bits).to_bytes(bits // 8, "little")


def field(rng, sections):
    if not sections or sections[0].kind != tf_format.HEADER:
        return "no header"
    try:
        header = tf_format.header_of(sections[0].payload)
    except struct.error:
        return "no fields"
    name = list(tf_format.HEADER_FIELDS)[rng.integers(len(tf_format.HEADER_FIELDS))]
    layout, number = tf_format.HEADER_FIELDS[name], _number(rng)
    (header.fields[name],) = struct.unpack(f"<{layout}", _packed(layout, number))
    sections[0] = sections[0]._replace(payload=tf_format.header_payload(header))
    return f"{name} {number}"


def slot(rng, sections):
    if not sections or sections[0].kind != tf_format.HEADER:
        return "no header"
    try:
        header = tf_format.header_of(sections[0].payload)
    except struct.error:
        return "no fields"
    width = max(min(_number(rng), 2**31 - 1), -(2**31))
    name = [b"momentum/count", b"new", b""][rng.integers(3)]
    header.slots.append((name, width, int(rng.integers(-1, 4)), 0.0))
    if rng.random() < 0.5:
        header.slots.pop(0)
    sections[0] = sections[0]._replace(payload=tf_format.header_payload(header))
    return f"{name} {width}"


def number(rng, sections):
    at = _pick(rng, sections)
    payload = bytearray(sections[at].payload)
    if len(payload) < 8:
        return "none"
    layout = "<q" if rng.random() < 0.8 else "<i"
    size, value = struct.calcsize(layout), _number(rng)
    where = int(rng.integers(0, len(payload) - size + 1)) // size * size
    payload[where : where + size] = _packed(layout[1], value)
    sections[at] = sections[at]._replace(payload=bytes(payload))
    return f"{value} at {where} of section {at}, kind {sections[at].kind}"


def flipped_bytes(rng, sections):
    at = _pick(rng, sections)
    payload = bytearray(sections[at].payload)
    for _ in range(rng.integers(1, 5)):
        if payload:
            payload[rng.integers(len(payload))] = int(rng.integers(256))
    sections[at] = sections[at]._replace(payload=bytes(payload))
    return f"section {at}"


def length(rng, sections):
    at = _pick(rng, sections)
    payload = sections[at].payload
    size = int(rng.integers(0, len(payload) + 20))
    sections[at] = sections[at]._replace(payload=(payload + bytes(20))[:size])
    return f"section {at}: {size} bytes of {len(payload)}"


def claim(rng, sections):
    at = _pick(rng, sections)
    sections[at] = sections[at]._replace(claimed_bytes=_number(rng) % 2**64)
    return f"section {at}: {sections[at].claimed_bytes} bytes"


def kind(rng, sections):
    at = _pick(rng, sections)
    sections[at] = sections[at]._replace(kind=int(rng.integers(0, 10)))
    return f"section {at}: {sections[at].kind}"


def order(rng, sections):
    at, to = _pick(rng, sections), _pick(rng, sections)
    how = rng.integers(3)
    if how == 0:
        sections.insert(to, sections[at])
    elif how == 1 and len(sections) > 1:
        del sections[at]
    else:
        sections[at], sections[to] = sections[to], sections[at]
    return f"{at}, {to}, {how}"


def more(rng, sections):
    """A section of its own, before the totals."""
    made = int(rng.integers(1, 8))
    payload = b"".join(_packed("q", _number(rng)) for _ in range(rng.integers(0, 9)))
    sections.insert(max(len(sections) - 2, 0), Section(made, payload))
    return f"kind {made}"


CHANGES = [field, field, field, slot, number, number, number, flipped_bytes]
CHANGES += [length, claim, kind, order, more]


def manifest(rng):
    """One whose checksum is right."""
    suffixes = [
        b"data-r0abc-of-12def",
        b"data-c0abc-of-12def",
        b"data-r/../../..-of",
        b"",
        b"x" * 300,
    ]
    files = [
        (suffixes[rng.integers(5)], i % 2, max(min(_number(rng), 2**63 - 1), -(2**63)), 5, 7)
        for i in range(rng.integers(0, 4))
    ]
    whole = bytearray(tf_format.manifest_content(b"user", 3, files))
    for _ in range(rng.integers(0, 4)):
        where = int(rng.integers(0, len(whole) - 3))
        whole[where : where + 4] = _packed("I", _number(rng))
    end = len(whole) if rng.random() < 0.7 else int(rng.integers(len(whole) + 1))
    return tf_format.manifest_of(bytes(whole[:end]))


def read_file(path, options):
    """Reads a file in every way there is; whether it could be restored."""
    read = []
    for reads in (
        lambda: core.verify_table_file(path),
        lambda: [len(block["keys"]) for block in core.TableFile(path)],
    ):
        try:
            read.append(reads())
        except RuntimeError as error:
            assert str(error).startswith("file '"), error
    table = make_table(**options)
    rng = np.random.default_rng(2)
    train(table, [1, 1, 1, 2, 2, 2], 1, rng)
    before = content(table)
    for index, count in ((0, 1), (1, 2)):
        try:
            core.restore_table(table, [path], index=index, count=count)
        except RuntimeError as error:
            assert content(table) == before, f"refused, and changed: {error}"
            continue
        assert len(read) == 2
        use(table)
        return True
    return False


def use(table):
    """Trains a table that was restored, and reads it."""
    rng = np.random.default_rng(3)
    for step in range(3):
        batch = table.begin_batch()
        rows = np.unique(table.locate(np.arange(-4, 16), train=True, step=step))
        rows = rows[rows >= table.first_row]
        table.before_write(rows)
        table.rows[rows] = rng.normal(size=[len(rows), table.rows.shape[1]])
        table.end_batch(batch)
    content(table)


def check_memory():
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - check_memory.base
    if taken > MAX_BYTES:
        sys.exit(f"took {taken >> 20} MB")


def main(folder, seed, first, last):
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    bases = base_files()
    check_memory.base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    num_read = 0
    for case in range(first, last):
        rng = np.random.default_rng([seed, case])
        name, data = bases[rng.integers(len(bases))]
        mutation, how = mutate(rng, data)
        print(f"case {case}: {name}: {how}", flush=True)
        signal.alarm(SECONDS)
        with open("file", "wb") as file:
            file.write(mutation)
        num_read += read_file("file", FILTERS[name])
        try:
            core.decode_manifest(manifest(rng), "user")
        except RuntimeError as error:
            assert "table 'user'" in str(error)
        check_memory()
    print(f"{num_read} of {last - first} were read")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
