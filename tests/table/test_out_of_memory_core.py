"""Host memory that runs out: the error has the bytes that a table wants and those that are left,
and all tables are whole."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# Two tables under a limit of address space: memory for rows or the index ends in the first cases,
# for the index in the last.
PROGRAM = """
import resource, sys
import numpy as np
from table.steps import core, located

case = sys.argv[1]
count = {"admission": "counter", "min_count": 2}  # keys seen once are in an index, without rows
tables = [
    core.HostTable(name=name, dim=1, max_bytes=64 << 20, **(count if case == "count" else {}))
    for name in ("user", "item")]
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

def limit(megabytes):
    most = resource.RLIM_INFINITY if megabytes is None else taken + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

def insert(table, keys):
    ones = np.ones(len(keys), np.int64)
    values = keys[:, None].astype(np.float32)
    table.insert({"keys": keys, "counts": ones, "versions": ones, "values": values})

def call(table, keys):
    if case == "insert":
        return insert(table, keys)
    with located(table, keys, train=True, step=0):
        pass

known = np.arange(1000)
for table in tables:
    insert(table, known)
limit(64 + 24)  # of which tables leave 64 MB to others
done, error = [], None
for begin in range(10**6, 10**8, 4000):
    keys = np.arange(begin, begin + 4000)
    try:
        for table in tables:
            call(table, keys)
    except (RuntimeError, ValueError, MemoryError) as raised:
        error = raised
        break
    done.append(keys)
print(type(error).__name__, error, flush=True)
for table in tables:
    with located(table, known, train=True, step=1) as rows:  # under the limit
        np.testing.assert_array_equal(table.rows[rows][:, 0], known)
limit(None)
for table in tables:
    call(table, keys)
    for some in (done[0], done[-1], keys):  # counted a second time, all have rows
        with located(table, some, train=True, step=2) as rows:
            assert (rows >= table.first_row).all() and len(set(rows.tolist())) == len(some)
print("whole")
"""


@pytest.mark.parametrize("case", ["train", "insert", "count"])
def test_a_table_without_memory_says_what_it_wants(case):
    # Given two tables with few rows, in a process with little memory
    command = [sys.executable, "-c", PROGRAM, case]

    # When they take new keys until there is no more
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True
    )

    # Then the error names the table, both numbers of bytes and a remedy, and no key is lost
    assert run.returncode == 0, run.stderr[-2000:]
    error, whole = run.stdout.strip().splitlines()
    assert "table 'user' is full" in error or "table 'item' is full" in error
    assert "bytes are left of the limit of address space (raise RLIMIT_AS" in error
    wanted = r"it wants \d+ bytes more" if case == "count" else r"it wants \d+ bytes"
    assert re.search(wanted, error) and "set a budget" in error
    assert whole == "whole"
