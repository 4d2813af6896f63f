"""A run of the tests itself: one that measures time runs alone, how long each took is written, a
file over its budget and what a test leaves behind fail the run, and changed files name their tests.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.session import changed, durations, schedule, seeds, shared_ranks, tiers

HERE = Path(__file__).parent

# Each test writes when it began and when it ended.
TIMES = """
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

LEAVES_A_SERVER = """
import socket, subprocess, sys, tempfile

LISTEN = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(1, flush=True)"

def test_server():
    server = subprocess.Popen(
        [sys.executable, "-c", LISTEN + "; time.sleep(60)"], stdout=subprocess.PIPE
    )
    server.stdout.readline()
    tempfile.mkdtemp(prefix="rows_")
"""

ENDS_ITS_PROCESS = """
import ctypes, threading

def test_before():
    pass

def test_that_waits():
    threading.Event().wait()

def test_that_crashes():
    ctypes.string_at(0)
"""

FORKS = """
import os, time
import pytest

def test_that_forks():
    if os.fork() == 0:  # it keeps the files of locks alone: pytest-xdist waits for its pipes
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink("/proc/self/fd/" + name).startswith(("pipe", "socket")):
                    os.close(int(name))
            except OSError:  # the folder itself
                pass
        time.sleep(60)
        os._exit(0)

@pytest.mark.timed
def test_timed():
    pass
"""


def run(folder, files, *arguments):
    """Runs test files {name: text} in a process of its own, with the conftest.py of all tests."""
    shutil.copy(HERE / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    timed\n    budget(seconds)\n")
    for name, text in files.items():
        (folder / name).write_text(text)
    ours = ("PYTEST_XDIST", "PYTEST_CURRENT", "PYTEST_ADDOPTS")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    command = [sys.executable, "-m", "pytest", *arguments, "."]
    return subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)


def test_no_test_runs_beside_one_that_measures_time(tmp_path):
    # Given two files of tests, each with one that measures time
    pytest.importorskip("xdist", reason="pytest-xdist, of requirements/dev.txt, is not installed")
    times = tmp_path / "times"
    times.mkdir()
    files = {f"test_{name}.py": TIMES.format(folder=times, name=name) for name in "ab"}

    # When two processes run them
    done = run(tmp_path, files, "-n", "2", "--dist", "loadfile")
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

    # And how long each took is written
    seconds = durations.read(tmp_path / "build/durations.jsonl")
    assert len(seconds) == 12 and all(0.1 <= one < 60 for one in seconds.values())


def test_a_file_over_its_budget_fails_the_run(tmp_path):
    # Given two files that take equally long, of which one is marked with a lower budget
    marked = "import pytest, time\npytestmark = pytest.mark.budget(0.01)\n"
    sleeps = "def test_sleep():\n    time.sleep(1.6)\n"
    files = {"test_marked.py": marked + sleeps, "test_other.py": "import time\n" + sleeps}

    # When they run
    done = run(tmp_path, files)

    # Then the run fails, and names the one
    assert done.returncode == 1 and "2 passed" in done.stdout
    assert "OVER BUDGET test_marked.py: 2 s, budget 0." in done.stdout
    assert "OVER BUDGET test_other.py" not in done.stdout


def test_what_a_test_leaves_behind_fails_the_run(tmp_path):
    # Given a test that passes, and leaves a process that listens on a port, and a folder
    # When it runs
    done = run(tmp_path, {"test_server.py": LEAVES_A_SERVER})

    # Then the run fails, and names them, and the process has ended
    assert done.returncode == 1 and "1 passed" in done.stdout
    (process,) = [
        line for line in done.stdout.splitlines() if "LEFT BEHIND" in line and "port" in line
    ]
    assert "import socket" in process
    assert "/rows_" in done.stdout
    pid = int(process.split("process ")[1].split(",")[0])
    assert not Path(f"/proc/{pid}/fd").exists() or not os.listdir(f"/proc/{pid}/fd")


@pytest.mark.parametrize("how", ["waits", "crashes"])
def test_a_test_that_hangs_or_crashes_is_named_and_ends_the_run(how, tmp_path):
    # Given a test that never ends, or ends its process
    pytest.importorskip("xdist", reason="pytest-xdist, of requirements/dev.txt, is not installed")
    name = f"test_that_{how}"

    # When it runs, at most for the limit of a test
    arguments = ("-n", "1", "--max-worker-restart", "0", "--test-limit", "2", "-k", name)
    done = run(tmp_path, {"test_ends.py": ENDS_ITS_PROCESS}, *arguments)

    # Then the run ends with the test's name, and last the line at which it was
    assert done.returncode != 0
    assert f"crashed while running 'test_ends.py::{name}'" in done.stdout, done.stdout
    assert f"in {name}" in done.stdout.partition("short test summary")[2], done.stdout


def test_a_forked_process_does_not_keep_the_turn_of_its_test(tmp_path):
    # Given a test that leaves a copy of its process behind, and one that measures time
    pytest.importorskip("xdist", reason="pytest-xdist, of requirements/dev.txt, is not installed")

    # When they run one after the other
    done = run(tmp_path, {"test_forks.py": FORKS}, "-n", "1", "--test-limit", "20")

    # Then the second did not wait for the process, which the run names and ends
    assert "2 passed" in done.stdout, done.stdout
    assert re.search(r"LEFT BEHIND by a test: process \d+", done.stdout), done.stdout


def test_seconds_are_added_by_folder_and_runs_lie_side_by_side(tmp_path):
    # Given two runs, in the second of which a file was made faster
    for name, seconds in (("before", [2.0, 1.0, 4.0]), ("after", [0.5, 1.0, 4.0])):
        tests = ["tests/a/test_x.py::one", "tests/a/test_x.py::two", "tests/b/test_y.py::one"]
        lines = [json.dumps({"test": t, "seconds": s}) for t, s in zip(tests, seconds)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")

    # When a table is made of both
    runs = [durations.read(tmp_path / name) for name in ("before", "after")]
    lines = durations.table(runs, "folder").splitlines()

    # Then it has a line for each folder, the slowest first, and one for all
    assert lines[0] == "| folder | seconds | tests | seconds | tests |"
    assert lines[2:] == [
        "| tests/b | 4 | 1 | 4 | 1 |",
        "| tests/a | 3 | 2 | 2 | 2 |",
        "| all | 7 | 3 | 6 | 3 |",
    ]


@pytest.mark.parametrize(
    "path, tests",
    [
        ("group_embedding/config.py", "tests/test_config.py"),
        ("group_embedding/lookups/api.py", "tests/lookups"),
        ("group_embedding/variables/prefetch_rows.py", "tests/variables/test_prefetch_rows.py"),
        ("cc/table/file/read.cc", "tests/table"),
        ("cc/serving/server/rest.cc", "tests/serving/server"),
        ("docs/guides/keras.md", "tests/test_docs.py"),
        ("tests/support/oracles/rules.py", "tests/fused/test_group_update_core.py"),
        ("tests/lookups/test_lookup.py", "tests/lookups/test_lookup.py"),
        ("tests/variables/conftest.py", "tests/variables"),
        ("Makefile", "tests/test_packaging.py"),
    ],
)
def test_a_changed_file_names_the_tests_that_mirror_it(path, tests):
    found = changed.tests_of([path])

    assert tests in found and "tests/test_architecture.py" in found
    assert len(found) < 12


def test_every_folder_of_code_names_tests():
    # Given each folder that holds code
    files = subprocess.run(
        ["git", "-C", changed.ROOT, "ls-files", "group_embedding", "cc", "buildtools"],
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    if not files:
        pytest.skip("this is no git checkout")

    # When the tests of its files are asked for, Then there are others than those of all files
    for path in files:
        if path.endswith((".py", ".cc", ".cu", ".h")) and path.count("/") > 1:
            assert set(changed.tests_of([path])) - set(changed.ALWAYS), path


def test_tests_of_ranks_come_first_and_together_in_any_order():
    # Given tests of ranks in two folders, and others
    names = [
        "tests/a/test_a.py::t",
        *("tests/ranks/exchange/test_b.py::t", "tests/ranks/exchange/test_b.py::u"),
        *("tests/layers/test_c.py::t", "tests/layers/test_c.py::u"),
        "tests/compat/sok/test_d.py::t",
    ]
    items = [SimpleNamespace(nodeid=name, path=name.partition("::")[0]) for name in names]
    is_of_ranks = [schedule.unit_of(name) == "ranks" for name in names]

    # When they are sorted, Then those of ranks are first
    assert sorted(is_of_ranks) == [False] * 3 + [True] * 3
    first = [item.nodeid for item in schedule.first_ranks(items)]
    assert first == [names[i] for i in (1, 2, 5, 0, 3, 4)]

    # When they are shuffled, Then each test is there, the seed repeats it, and units stay together
    orders = {tuple(item.nodeid for item in schedule.shuffled(items, seed)) for seed in range(20)}
    assert len(orders) > 5
    for order in orders:
        assert sorted(order) == sorted(names)
        units = [schedule.unit_of(name) for name in order]
        assert sum(one != other for one, other in zip(units, units[1:])) == 2


def test_ranks_end_with_the_last_file_of_a_folder_that_needs_them(monkeypatch):
    # Given two and three ranks, and files of two folders that need the two
    closed = []
    ranks = [SimpleNamespace(num_ranks=n, close=lambda n=n: closed.append(n)) for n in (2, 3)]
    monkeypatch.setattr(shared_ranks, "_started", ranks)
    names = ("a/test_x.py", "a/test_y.py", "b/test_z.py")
    items = [SimpleNamespace(path=Path(name), fixturenames=["two_ranks"]) for name in names]
    ended = []
    # When tests end, each before another of its file, its folder, another folder, and none
    for item, nextitem in [(0, 0), (0, 1), (1, 2), (2, None)]:
        after = None if nextitem is None else items[nextitem]
        shared_ranks.pytest_runtest_teardown(items[item], after)
        ended.append(closed[:])
        closed.clear()
    # Then ranks stay that the next file of the same folder needs
    assert ended == [[], [3], [2, 3], [2, 3]]


def test_initial_values_of_a_test_do_not_depend_on_the_tests_before_it():
    # Given tests that seeded Keras, and one that did not
    keras = pytest.importorskip("keras")
    values = []
    for seed_of_another_test in (1, 2, None):
        if seed_of_another_test is not None:
            keras.utils.set_random_seed(seed_of_another_test)
        # When a test starts, and makes a layer
        seeds.start(7)
        layer = keras.layers.Dense(4)
        layer.build((None, 3))
        values.append(layer.get_weights()[0].tolist())
    # Then the layer starts with the same weights
    assert values[0] == values[1] == values[2]


def test_a_covering_of_a_product_has_each_value_and_each_pair():
    # Given all combinations of three parameters
    values = {"rule": range(5), "storage": range(3), "how": range(2)}
    product = [dict(zip(values, one)) for one in itertools.product(*values.values())]

    # When some are chosen for each value, and for each pair of values
    singles, pairs = (tiers.cover(product, strength) for strength in (1, 2))

    # Then nothing is left out, and there are far less than all
    for chosen, strength in ((singles, 1), (pairs, 2)):
        for names in itertools.combinations(values, strength):
            found = {tuple(product[number][name] for name in names) for number in chosen}
            assert found == set(itertools.product(*(values[name] for name in names)))
    assert len(singles) == 5 and len(pairs) <= 17 < len(product)


def test_files_without_tensorflow_do_not_import_it():
    # Given the files of tests that TensorFlow has no part in
    files = [file for file in HERE.rglob("*.py") if file.name.startswith("test_")]
    names = {file: file.relative_to(HERE).as_posix() for file in files}
    without = [file for file in files if tiers.is_without_tensorflow(names[file])]

    # When their imports are read
    importing = [
        names[file]
        for file in without
        if re.search(
            r"^ *(import|from) tensorflow|^import group_embedding", file.read_text(), re.MULTILINE
        )
    ]

    # Then there is none of TensorFlow, and each pattern is of a file
    assert not importing
    for pattern in tiers.WITHOUT_TENSORFLOW + tiers.OF_ONE_PROGRAM:
        assert any(fnmatch(name, pattern) for name in names.values()), pattern
