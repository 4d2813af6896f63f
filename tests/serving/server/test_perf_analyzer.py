"""The unmodified perf_analyzer measures the server."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

LIBRARIES = Path(sysconfig.get_path("purelib"), "nvidia", "cuda_runtime", "lib")


@pytest.fixture
def perf_analyzer():
    """Runs it with arguments; returns what it prints."""
    program = shutil.which("perf_analyzer", path=Path(sys.executable).parent)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(LIBRARIES)}

    def run(*arguments):
        command = [program, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    if program is None:
        pytest.skip("perf_analyzer is missing: pip install --no-deps -r requirements/serving.txt")
    if "error while loading shared libraries" in (error := run("--help")[1]):
        pytest.skip(error.strip())
    return run


@pytest.mark.soak
def test_perf_analyzer(shared, perf_analyzer):
    # Given the settings of a short run: windows of 100 requests, however unsteady
    window = ["--measurement-mode", "count_windows", "--measurement-request-count", "100"]
    window += ["-s", "1000000"]

    # When it sends batches of 2, with two requests in flight
    inputs = ["-b", "2", "--shape", "x:3", "--shape", "n:1"]
    where = ["-m", "m", "--service-kind", "tfserving", "-i", "grpc"]
    where += ["-u", f"127.0.0.1:{shared.grpc_port}"]
    status, printed = perf_analyzer(*where, *inputs, *window, "--concurrency-range", "2")

    # Then it has measured answers
    assert status == 0, printed
    throughput = re.search(r"Concurrency: 2, throughput: ([\d.]+) infer/sec", printed)
    assert throughput and float(throughput[1]) > 0
