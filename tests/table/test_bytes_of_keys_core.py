"""The memory of keys in a table in host memory, beside rows, seen from outside the process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("support.core")

PROGRAM = """
import sys
import numpy as np
from support import core

admission, stages, keys_a_stage = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
filter = {} if admission == "all" else {"admission": admission, "min_count": 2}
table = core.HostTable(dim=8, distribution="uniform", a=-0.1, b=0.1, **filter)
numbers = np.arange(stages * keys_a_stage, dtype=np.uint64)
keys = (numbers * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
for stage in range(stages + 1):
    print(table.num_keys, table.memory_bytes, flush=True)
    sys.stdin.readline()
    new = keys[stage * keys_a_stage :][:keys_a_stage]
    for begin in range(0, len(new), 1 << 16):
        for _ in range(2 if filter else 1):
            table.locate(new[begin : begin + (1 << 16)], train=True, step=stage)
"""


def bytes_of(process, name):
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("admission", ["all", "counter"])
def test_a_key_takes_at_most_24_bytes_and_growth_a_quarter_more(admission):
    # Given a program with a table of 32 bytes a row, whose memory the system tells
    stages, keys_a_stage, spare = 8, 200_000, 12 << 20  # bytes: of pages that are not full
    arguments = [admission, str(stages), str(keys_a_stage)]
    paths = [str(Path(__file__).parents[1])]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    try:
        before = None
        for _ in range(stages + 1):
            # When the table grows
            num_keys, memory_bytes = map(int, process.stdout.readline().split())
            resident, peak = (bytes_of(process, name) for name in ("VmRSS", "VmHWM"))
            before = resident if before is None else before

            # Then it accounts for at most 24 bytes a key, takes hardly more, and never took a
            # quarter more
            assert memory_bytes <= num_keys * (32 + 24) + (1 << 16)
            assert resident - before <= num_keys * (32 + 24) + spare
            assert peak - before <= 1.25 * (resident - before) + spare
            process.stdin.write("\n")
            process.stdin.flush()
        assert num_keys == stages * keys_a_stage
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        process.stdin.close()
        process.stdout.close()
