"""Host memory that runs out for rows of tables in GPU and page-locked memory: the error says what
is wanted and left, after which the tables have all the rows that they had, and work."""

import subprocess
import sys

import numpy as np
import pytest
from support.cases.core_runner import on_gpu
from table.device_tables import DeviceTable
from table.steps import core, located, train

DIM, AT_ONCE = 64, 50_000  # rows of 544 bytes with a slot, 27 MB a call
MOST_CALLS = 200
LEFT, FOR_CALLS, ENOUGH = 768, 1024, 4096  # megabytes
MOST_OF_HOST = 192 << 30  # bytes; more take minutes to take

# Takes memory of the host until as many megabytes are left as a line names, and prints how many
# are left: twice, as a host may get more memory while programs take it. The kernel would end this
# process first.
PROGRAM = """
import mmap, sys, time

with open("/proc/self/oom_score_adj", "w") as score:
    score.write("1000")
parts = []

def available():
    with open("/proc/meminfo") as lines:
        of = dict(line.split()[:2] for line in lines)
    return int(of["MemAvailable:"]) + int(of["SwapFree:"]) >> 10

def leave(megabytes):
    while parts and available() < megabytes:
        parts.pop().close()
    while (size := min(1024, available() - megabytes)) >= 16:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        parts.append(mmap.mmap(-1, size << 20, flags=flags))

for line in sys.stdin:
    leave(int(line))
    time.sleep(1)
    leave(int(line))
    print(available(), flush=True)
"""


def host_bytes():
    with open("/proc/meminfo") as lines:
        return int(next(lines).split()[1]) << 10


pytestmark = [
    *on_gpu,
    pytest.mark.slow,
    pytest.mark.budget(240),
    pytest.mark.skipif(host_bytes() > MOST_OF_HOST, reason="the host has more memory to take"),
]


@pytest.fixture(scope="module")
def leave():
    """A function that leaves so many megabytes of the host's memory."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as taker:

        def leave(megabytes):
            taker.stdin.write(f"{megabytes}\n")
            taker.stdin.flush()
            assert taker.stdout.readline(), "the kernel ended the process that takes memory"

        yield leave
        taker.stdin.close()


def values_of(keys):
    return np.repeat((keys % 1000 + 100)[:, None], DIM, 1).astype(np.float32)


def insert(table, keys):
    ones = np.ones(len(keys), np.int64)
    table.insert({"keys": keys, "values": values_of(keys), "counts": ones, "versions": ones})


def assert_rows(table, keys, start):
    """The keys have rows of their own, with the values that they got."""
    with located(table, keys, train=True, step=2) as rows:
        assert (rows >= table.first_row).all() and len(set(rows.tolist())) == len(keys)
        np.testing.assert_array_equal(table.rows[rows], start(keys))


@pytest.mark.parametrize("op", ["given", "trained"])
@pytest.mark.parametrize("has_disk", [False, True], ids=["HBM_DRAM", "HBM_DRAM_SSDHASH"])
def test_page_locked_memory_that_runs_out_is_an_error(leave, has_disk, op, tmp_path):
    # Given two tables with rows in GPU memory, and little memory of the host
    def make(name):
        disk = {"disk": core.DiskTier(path=str(tmp_path / name))} if has_disk else {}
        return DeviceTable(name=name, dim=DIM, device_bytes=64 << 20, max_bytes=8 << 30, **disk)

    tables = [make("user"), make("item")]
    known = np.arange(1000)
    for table in tables:
        table.slot("slot", initial=0.5)
        insert(table, known)
    leave(LEFT)

    # When they take new keys until there is no more
    def call(table, keys):
        if op == "given":
            insert(table, keys)
        else:
            train(table, keys, step=1, at_once=AT_ONCE)

    done, error = [], ""
    for turn in range(MOST_CALLS):
        keys = np.arange(AT_ONCE) + (turn + 1) * 10**6
        try:
            for table in tables:
                call(table, keys)
        except RuntimeError as raised:
            error = str(raised)
            break
        done.append(keys)

    # Then the error names the table, both numbers of bytes and a remedy
    print(f"after {len(done)} calls: {error}")
    assert "table 'user' is full" in error or "table 'item' is full" in error
    assert "wants" in error and "of the host's memory, page-locked, and" in error
    assert "bytes are left of the host's memory, of which" in error and "set a budget" in error

    # And each table has what it had, trains it and is saved, and gets the same keys with memory
    leave(FOR_CALLS)
    start = values_of if op == "given" else lambda keys: np.zeros((len(keys), DIM), np.float32)
    for table in tables:
        assert_rows(table, known, values_of)
        assert_rows(table, done[0], start)
        snapshot = table.snapshot()
        saved = np.concatenate(
            [
                snapshot.read(begin, min(begin + AT_ONCE, snapshot.num_rows))["keys"]
                for begin in range(0, snapshot.num_rows, AT_ONCE)
            ]
        )
        assert len(np.unique(saved)) == len(saved) == table.num_keys
        assert np.isin(np.concatenate([known, *done]), saved).all()
    leave(ENOUGH)
    for table in tables:
        call(table, keys)
        for some in (done[0], done[-1], keys):
            assert_rows(table, some, start)
