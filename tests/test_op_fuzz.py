"""Calls of all native ops with inputs and attributes that no Python function would give them: each
is an error or has a result, and none ends the process."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.cases import hostile_ops

SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))
CHILD = hostile_ops.__file__
SECONDS_OF_A_CALL = 60
SECONDS_OF_A_START = 240  # TensorFlow's, and that of the programs whose calls are recorded


def run(log, seed, first, count):
    """Starts a process that makes `count` calls from `first` on."""
    command = [sys.executable, CHILD, log, str(seed), str(first), str(count)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment["TMPDIR"] = str(Path(log).parent)  # of models that calls name
    with open(f"{log}.err", "w") as err:
        return subprocess.Popen(command, env=environment, stdout=err, stderr=err)


def wait_for(process, log):
    """Waits as long as calls follow each other. Returns why the process did not make all of them,
    or None."""
    last_size, since = -1, time.monotonic()
    while process.poll() is None:
        size = log.stat().st_size if log.exists() else 0
        if size != last_size:
            last_size, since = size, time.monotonic()
        seconds = SECONDS_OF_A_CALL if size > 0 else SECONDS_OF_A_START
        if time.monotonic() - since > seconds:
            process.kill()
            process.wait()
            return f"a call takes more than {seconds} s: {last_line(log)}"
        time.sleep(0.05)
    if last_line(log).startswith("done"):
        return None
    errors = Path(f"{log}.err").read_text()[-2000:]
    return f"the process ended with {process.returncode} in {last_line(log)}\n{errors}"


def last_line(log):
    return (log.read_text().splitlines() or ["no call"])[-1] if log.exists() else "no call"


def make_calls(folder, seed, count, at_once=2):
    processes = []
    for part in range(at_once):
        log = folder / f"calls_{part}"
        first = count * part // at_once
        processes.append((run(log, seed, first, count * (part + 1) // at_once - first), log))
    failures = [wait_for(process, log) for process, log in processes]
    assert not any(failures), "\n".join(filter(None, failures))
    return [last_line(log) for _, log in processes]


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_call_ends_the_process(tmp_path, count):
    # Given near-valid calls of all ops, drawn from a seed
    # When two processes make them
    ends = make_calls(tmp_path, SEED, count)
    # Then both make all of theirs, some of which were valid still
    assert all(int(end.split()[1]) > count // 40 for end in ends), ends


@pytest.mark.soak
def test_two_hundred_thousand_calls(tmp_path):
    for seed in range(SEED + 1, SEED + 11):
        make_calls(tmp_path, seed, 20_000)
