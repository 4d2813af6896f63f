"""Training streams: a file ten times as large takes no more memory."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks/bench_config_memory.py"


def peak_of(gigabytes):
    command = [sys.executable, SCRIPT, "--gigabytes", str(gigabytes), "--gibibytes", "4"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return float(re.findall(r"peak ([\d.]+) GiB", ran.stdout)[0])


@pytest.mark.soak
def test_peak_does_not_grow_with_the_file():
    # Given the peak of a training on 0.2 GB of values
    small = peak_of(0.2)

    # When there are 2 GB, Then the peak is the same, but for what the process keeps of buffers
    assert peak_of(2) < small + 0.4
