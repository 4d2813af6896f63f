"""How long each test takes: written by every run, printed by folder, file or test.

    python tests/support/session/durations.py [--by folder|file|test] [--top N] [FILE ...]

reads build/durations.jsonl, or FILEs of several runs side by side. As a plugin of pytest it writes
that file, one line a test as soon as the test has ended, and fails a run in which a file took
longer than its budget: the seconds of --file-budget or of its mark `budget`, and more on a machine
that is busy with other work.
"""

import argparse
import collections
import json
import os
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "build" / "durations.jsonl"
BUDGET = 90  # seconds of a file of the fast tests; most take less than 20


class Busyness:
    """Measures how long work takes on a machine that has other work, too: 1 where it has none."""

    def __init__(self):
        self._ended = threading.Event()
        self._cpu = self._wall = 0.0
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def end(self):
        """The factor."""
        self._ended.set()
        self._thread.join()
        return max(1.0, self._wall / self._cpu) if self._cpu else 1.0

    def _measure(self):
        while not self._ended.wait(timeout=1):
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            while time.thread_time() < begin_cpu + 0.003:
                pass
            self._wall += time.perf_counter() - begin
            self._cpu += time.thread_time() - begin_cpu


class Durations:
    """Adds up set-up, call and teardown of each test. One object, in the process that reports."""

    def __init__(self, path, budget):
        self._path, self._budget = path, budget
        self._file = None
        self._open = collections.Counter()  # seconds of tests that have not ended
        self._of_file = collections.Counter()
        self._budgets = {}  # of files that have their own
        self._busyness, self._factor = Busyness(), None

    def pytest_runtest_logreport(self, report):
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "w", buffering=1)  # noqa: SIM115
        self._open[report.nodeid] += report.duration
        self._budgets.update(value for name, value in report.user_properties if name == "budget")
        if report.when == "teardown":
            seconds = self._open.pop(report.nodeid)
            self._of_file[file_of(report.nodeid)] += seconds
            line = {"test": report.nodeid, "seconds": round(seconds, 3)}
            self._file.write(json.dumps(line) + "\n")

    def over_budget(self):
        """{file: (seconds, budget)} of the files that took too long. Ends the measurement."""
        if self._factor is None:
            self._factor = self._busyness.end()
        found = {}
        for file, seconds in self._of_file.items():
            budget = self._budgets.get(file, self._budget) * self._factor
            if seconds > budget:
                found[file] = seconds, budget
        return found

    def pytest_terminal_summary(self, terminalreporter):
        for file, (seconds, budget) in sorted(self.over_budget().items()):
            terminalreporter.write_line(
                f"OVER BUDGET {file}: {seconds:.0f} s, budget {budget:.1f} s. Make it faster, mark "
                "slow tests with pytest.mark.slow, or the file with pytest.mark.budget(seconds).",
                red=True,
            )

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == 0 and self.over_budget():
            session.exitstatus = 1


def send_budget(item):
    """Adds the file's own budget to the report of a test, which may end in another process."""
    mark = item.get_closest_marker("budget")
    if mark is not None:
        item.user_properties.append(("budget", (file_of(item.nodeid), mark.args[0])))


def file_of(test):
    return test.partition("::")[0]


def read(path):
    """{test: seconds} of a run."""
    lines = Path(path).read_text().splitlines()
    return {one["test"]: one["seconds"] for one in map(json.loads, lines)}


def sums(durations, by):
    """{folder, file or test: [seconds, number of tests]}."""
    found = collections.defaultdict(lambda: [0.0, 0])
    for test, seconds in durations.items():
        file = file_of(test)
        name = {"folder": os.path.dirname(file), "file": file, "test": test}[by]
        found[name][0] += seconds
        found[name][1] += 1
    return found


def table(runs, by, top=None):
    """A Markdown table of runs (those of `read`) side by side: the slowest of the first on top."""
    columns = [sums(run, by) for run in runs]
    names = {name for column in columns for name in column}
    names = sorted(names, key=lambda name: [-column[name][0] for column in columns])
    lines = [f"| {by} |" + " seconds | tests |" * len(runs), "|---|" + "--:|--:|" * len(runs)]
    total = [[sum(cell[i] for cell in column.values()) for i in (0, 1)] for column in columns]
    rows = [(name, [column[name] for column in columns]) for name in names[:top]]
    for name, cells in [*rows, ("all", total)]:
        words = [f" {seconds:,.0f} | {tests:,} |" for seconds, tests in cells]
        lines.append(f"| {name} |" + "".join(words))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", default=[FILE], help="default: that of the last run")
    parser.add_argument("--by", choices=("folder", "file", "test"), default="folder")
    parser.add_argument("--top", type=int, help="the slowest N")
    options = parser.parse_args()
    print(table([read(file) for file in options.files], options.by, options.top))


if __name__ == "__main__":
    main()
