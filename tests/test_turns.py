"""Tests on several processes: one that measures time runs alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("xdist", reason="pytest-xdist, of requirements/dev.txt, is not installed")

# Each test writes when it began and when it ended.
TESTS = """
import time
from pathlib import Path
import pytest

def wait(name):
    begin = time.monotonic()
    time.sleep(0.1)
    Path("{folder}", name).write_text(f"{{begin}} {{time.monotonic()}}")

@pytest.mark.parametrize("n", range(5))
def test_plain(n):
    wait(f"plain_{name}_{{n}}")

@pytest.mark.timed
def test_timed():
    wait("timed_{name}")
"""


def test_no_test_runs_beside_one_that_measures_time(tmp_path):
    # Given two files of tests, each with one that measures time
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = timed\n")
    times = tmp_path / "times"
    times.mkdir()
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(TESTS.format(folder=times, name=name))

    # When two processes run them
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "."]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    modules = [str(Path(__file__).parent), *filter(None, [clean.get("PYTHONPATH")])]
    clean["PYTHONPATH"] = os.pathsep.join(modules)  # of conftest.py
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    # Then others ran side by side, and none beside those
    spans = {file.name: tuple(map(float, file.read_text().split())) for file in times.iterdir()}
    assert len(spans) == 12
    beside = [
        (one, other)
        for one, (begin, end) in spans.items()
        for other, (other_begin, other_end) in spans.items()
        if one != other and begin < other_end and other_begin < end
    ]
    assert beside
    assert not [pair for pair in beside if pair[0].startswith("timed")]
