"""Files of tables whose checksums are right and whose content somebody made: refused, with a
sentence, before they cost memory or time. In child processes, so that a crash is named."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

core = pytest.importorskip("support.core")

from support.oracles import table_file_format as tf_format  # noqa: E402
from support.oracles.table_file_format import Section  # noqa: E402
from support.session.tiers import by_day  # noqa: E402
from table.hostile_files import FILTERS, read_file  # noqa: E402
from table.table_files import make_table, save, train  # noqa: E402

SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))
SCRIPT = Path(__file__).with_name("hostile_files.py")


def run(folder, first, last):
    """Reads mutations [first, last) of files in a child process; how many could be read."""
    command = [sys.executable, SCRIPT, folder, str(SEED), str(first), str(last)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run(command, capture_output=True, text=True, env=environment)
    last_line = child.stdout.strip().rpartition("\n")[2]
    assert child.returncode == 0, (
        f"seed {SEED}: the process ended with {child.returncode} at {last_line}\n"
        + child.stderr[-2000:]
    )
    return int(last_line.split()[0])


@pytest.mark.parametrize("count", by_day([400, 1200], [400]))
def test_mutated_files_are_refused_or_read(tmp_path, count):
    print("seed", SEED)
    num_read = sum(run(tmp_path, first, first + 400) for first in range(0, count, 400))
    assert 0 < num_read < count / 3  # harmless changes are read


@pytest.mark.soak
def test_many_mutated_files_are_refused_or_read(tmp_path):
    print("seed", SEED)
    for first in range(0, 200_000, 1000):
        run(tmp_path, first, first + 1000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """{filter: the Sections of a file}."""
    folder = tmp_path_factory.mktemp("whole")
    found = {}
    for name, options in FILTERS.items():
        table, rng = make_table(**options), np.random.default_rng(0)
        for step in range(3):
            train(table, rng.integers(0, 12, 20), step, rng)
        train(table, [100, 101], 4, rng)
        save(table, folder / name)
        found[name] = tf_format.sections_of((folder / name).read_bytes())
    return found


def header(sections, **fields):
    parsed = tf_format.header_of(sections[0].payload)
    parsed.fields.update(fields)
    return [Section(tf_format.HEADER, tf_format.header_payload(parsed)), *sections[1:]]


def slots(sections, *slots):
    parsed = tf_format.header_of(sections[0].payload)._replace(slots=list(slots))
    return [Section(tf_format.HEADER, tf_format.header_payload(parsed)), *sections[1:]]


def numbers(sections, kind, at, *values):
    """With int64 numbers `values` from number `at` on in the first section of a kind."""
    which = next(i for i, section in enumerate(sections) if section.kind == kind)
    payload = bytearray(sections[which].payload)
    payload[8 * at : 8 * (at + len(values))] = np.array(values, np.int64).tobytes()
    changed = sections[which]._replace(payload=bytes(payload))
    return [*sections[:which], changed, *sections[which + 1 :]]


def keys_of(sections, kind):
    section = next(section for section in sections if section.kind == kind)
    return len(section.payload) // 16


# {name: (filter, changed file)} for each kind of section, and each number of the header.
CASES = {
    "counters before the first": ("bloom", lambda s: numbers(s, tf_format.COUNTERS, 0, -8)),
    "counters far behind": ("bloom", lambda s: numbers(s, tf_format.COUNTERS, 0, 2**62)),
    "counters at an overflow": ("bloom", lambda s: numbers(s, tf_format.COUNTERS, 0, 2**63 - 1)),
    "more counters": (
        "bloom",
        lambda s: [*s[:-2], Section(tf_format.COUNTERS, bytes(8) + bytes(5000)), *s[-2:]],
    ),
    **{
        f"a count of {count}": (
            "counter",
            lambda s, count=count: numbers(
                s, tf_format.COUNTED, keys_of(s, tf_format.COUNTED), count
            ),
        )
        for count in (0, -1, -2, -3, -4, -(10**6), -(2**63))
    },
    "counted keys without a filter": (
        "all",
        lambda s: [*s[:-2], Section(tf_format.COUNTED, bytes(8) + b"\1" + bytes(7)), *s[-2:]],
    ),
    "a row's count": ("all", lambda s: numbers(s, tf_format.ROWS, 1 + _num_rows(s), -1)),
    "rows without end": ("all", lambda s: numbers(s, tf_format.ROWS, 0, 2**61)),
    "fewer rows": ("all", lambda s: numbers(s, tf_format.ROWS, 0, 1)),
    "a wide slot": ("all", lambda s: slots(s, (b"wide", 2**31 - 1, 0, 0.0))),
    "a slot of another width": ("all", lambda s: slots(s, (b"wide", 3, 0, 0.0))),
    "two slots of one name": ("all", lambda s: slots(s, (b"a", 1, 0, 0.0), (b"a", 4, 0, 0.0))),
    "many slots": ("all", lambda s: slots(s, *((b"%d" % i, 4, 0, 0.0) for i in range(5000)))),
    "a wide table": ("all", lambda s: header(s, dim=2**31 - 1)),
    "initial rows without end": ("all", lambda s: header(s, matrix_rows=2**62)),
    "initial rows at an overflow": ("all", lambda s: header(s, matrix_rows=2**60 + 1)),
    "fewer initial rows": ("all", lambda s: header(s, matrix_rows=1)),
    "initial rows that are not there": ("all", lambda s: [x for x in s if x.kind != 2]),
    "a part behind the last": ("all", lambda s: header(s, part=7)),
    "parts of a negative number": ("all", lambda s: header(s, num_parts=-1)),
    "a filter that there is not": ("all", lambda s: header(s, admission=77)),
    "counters of 3 bytes": ("bloom", lambda s: header(s, counter_bytes=3)),
    "counters of 0 bytes": ("bloom", lambda s: header(s, counter_bytes=0)),
    "no counters": ("bloom", lambda s: header(s, num_counters=0)),
    "counters at an overflow of bits": ("bloom", lambda s: header(s, num_counters=2**63 - 1)),
    "totals": ("all", lambda s: numbers(s, tf_format.TOTALS, 0, 2**63 - 1)),
    "a section that claims more": (
        "all",
        lambda s: [s[0], s[1]._replace(claimed_bytes=2**64 - 8), *s[2:]],
    ),
}


def _num_rows(sections):
    payload = next(section.payload for section in sections if section.kind == tf_format.ROWS)
    return int.from_bytes(payload[:8], "little")


def in_a_child(check, *arguments):
    """The signal that a child which calls a function ends by, or 0."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check(*arguments)
            code = 0
        except BaseException as error:
            print(repr(error), file=sys.__stderr__, flush=True)
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    return status


def refuse(path, name):
    assert not read_file(str(path), FILTERS[name])


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_file_is_refused(case, whole, tmp_path):
    name, change = CASES[case]
    path = tmp_path / "file"
    path.write_bytes(tf_format.file_of(change(whole[name])))

    assert in_a_child(refuse, path, name) == 0


def test_a_sparse_section_of_gigabytes_takes_no_memory(whole, tmp_path):
    # Given a file of a few KB on the disk that is 6 GB long, in one section as it says
    path, size = tmp_path / "file", 6 << 30
    sections = [*whole["all"][:2], Section(tf_format.ROWS, b"", claimed_bytes=size)]
    path.write_bytes(tf_format.file_of(sections))
    os.truncate(path, path.stat().st_size + size)

    # When it is read, then it is refused before that
    def refuse_cheaply():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(RuntimeError, match="expected at most .* bytes in section 2"):
            core.verify_table_file(str(path))
        refuse(path, "all")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10

    assert in_a_child(refuse_cheaply) == 0


def test_what_is_not_a_regular_file_is_not_opened(tmp_path):
    # Given a FIFO that nobody writes to, and a folder
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, "/dev/zero"):
        # Then each is refused at once
        with pytest.raises(RuntimeError, match=f"'{path}': expected a regular file"):
            core.verify_table_file(str(path))
        with pytest.raises(RuntimeError, match="table 'user': cannot open"):
            core.restore_table(make_table(), [str(path)])


@pytest.mark.parametrize("suffix", [b"data-r/../..-of-12de", b"../../../etc/pass", b"", b"index"])
def test_a_manifest_names_files_beside_its_checkpoint_alone(suffix):
    manifest = tf_format.manifest_of(
        tf_format.manifest_content(b"user", 3, [(suffix, 0, 100, 5, 7)])
    )

    with pytest.raises(RuntimeError, match="table 'user': its entry in the checkpoint is damaged"):
        core.decode_manifest(manifest, "user")


def test_what_python_writes_is_what_the_library_writes(whole, tmp_path):
    for name, sections in whole.items():
        path = tmp_path / name
        parsed = tf_format.header_of(sections[0].payload)
        assert tf_format.header_payload(parsed) == sections[0].payload
        path.write_bytes(tf_format.file_of(sections))
        assert in_a_child(lambda: core.verify_table_file(str(path))) == 0  # noqa: B023
        assert core.verify_table_file(str(path))["id"] == parsed.fields["file_id"]
    manifest = tf_format.manifest_content(b"user", 3, [(b"data-r0abc-of-12def", 0, 100, 5, 7)])
    decoded = core.decode_manifest(tf_format.manifest_of(manifest), "user")
    assert decoded["files"] == [
        {"bytes": 100, "crc": 5, "id": 7, "suffix": "data-r0abc-of-12def", "changes_only": False}
    ]
