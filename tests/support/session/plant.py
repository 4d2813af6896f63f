"""Plants defects, one at a time, and says which of the fast tests finds each.

    python tests/support/session/plant.py [--all] [NAME ...]

Works on a copy of the last commit under build/planted, so the checkout stays as it is. First the
tests run that mirror the changed file, then the rest of their tier, until one fails: that of `make
test`, or with --all that of `make test-all`. Prints a row of a Markdown table for each defect.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
COPY = ROOT / "build" / "planted"
TIERS = {False: "not slow and not soak", True: "not soak"}


class Defect(NamedTuple):
    what: str
    file: str
    right: str  # there once
    wrong: str


DEFECTS = {
    "rule": Defect(
        "Adagrad leaves out the epsilon below the root",
        "cc/optimizer/rules.h",
        "    x -= rate * g / (SquareRoot(s[0] + h.epsilon_in_root) + h.epsilon);",
        "    x -= rate * g / (SquareRoot(s[0]) + h.epsilon);",
    ),
    "owner": Defect(
        "a restore on another number of ranks leaves out files whose keys begin within its share",
        "cc/core/owner.h",
        "return a * num_b < (b + 1) * num_a && b * num_a < (a + 1) * num_b;",
        "return a * num_b < b * num_a + 1 && b * num_a < (a + 1) * num_b;",
    ),
    "tombstone": Defect(
        "a server does not hear that a key was erased",
        "cc/serving/table/served_table.cc",
        "  for (const int64_t key : changes.erased) staged->Set(key, DefaultRow(key));\n",
        "",
    ),
    "scale": Defect(
        "sqrtn divides by the root of the sum of weights",
        "cc/fused/sample_ids.h",
        "1.0f / sqrtf(sum_squares)",
        "1.0f / sqrtf(sum_weights)",
    ),
    "checksum": Defect(
        "the checksum of a section of a file is not compared",
        "cc/table/file/section_file.cc",
        "if (payload_crc != Crc32c(0, payload->data(), bytes)) {",
        "if (payload_crc > 0xffffffff) {",
    ),
    "clip": Defect(
        "the gradient of a row that max_norm shortened is not projected",
        "cc/fused/row_gradients.h",
        "      ClipGradient(row, table_.dim, table_.max_norm, gradient);\n",
        "",
    ),
    "admission": Defect(
        "a key is admitted one count late",
        "cc/table/host/shard_task.h",
        "entry = count < admission.min_count ? nullptr",
        "entry = count <= admission.min_count ? nullptr",
    ),
    "eviction": Defect(
        "a key is evicted one step early",
        "cc/table/eviction.h",
        "step - version > eviction.steps_to_live",
        "step - version >= eviction.steps_to_live",
    ),
    "mean": Defect(
        "gradients of rows that all ranks look up in host memory are summed, not averaged",
        "group_embedding/ranks/exchange/message_exchange.py",
        "        return self._messages.look_up_rows(*rows, 1 / self.gradient_divisor, ",
        "        return self._messages.look_up_rows(*rows, 1.0, ",
    ),
    "stale": Defect(
        "a cache may evict a published row, and then answers with the one below it",
        "cc/serving/table/tiered_table.cc",
        "index_->Set(key, row, true);",
        "index_->Set(key, row, false);",
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DEFECTS)}")
    parser.add_argument("--all", action="store_true", help="the slow tests as well")
    options = parser.parse_args()
    _copy_checkout()
    print("| defect | found by | after |\n|---|---|--:|", flush=True)
    for name in options.names or DEFECTS:
        defect = DEFECTS[name]
        path = COPY / defect.file
        text = path.read_text()
        if text.count(defect.right) != 1:
            sys.exit(f"{name}: {defect.file} has changed, expected once: {defect.right}")
        path.write_text(text.replace(defect.right, defect.wrong))
        try:
            found, seconds = _first_failure(defect, TIERS[options.all])
        finally:
            path.write_text(text)
        print(f"| {defect.what} | {found} | {seconds:.0f} s |", flush=True)


def _copy_checkout():
    if not COPY.exists():
        subprocess.run(["git", "clone", "--quiet", ROOT, COPY], check=True)
    subprocess.run(["git", "-C", COPY, "fetch", "--quiet", ROOT, "HEAD"], check=True)
    subprocess.run(["git", "-C", COPY, "reset", "--quiet", "--hard", "FETCH_HEAD"], check=True)


def _first_failure(defect, tier):
    """The first test that fails, or "none", and the seconds of the tests until then."""
    if defect.file.startswith("cc/"):
        _run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], check=True)
        _run([sys.executable, "-m", "buildtools.core_module"], check=True)
        _run([sys.executable, "-m", "buildtools.serving"])  # without nghttp2 its tests are skipped
    changed = _run([sys.executable, "tests/support/session/changed.py"], stdout=subprocess.PIPE)
    begin = time.monotonic()
    for tests in (changed.stdout.split(), []):
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", tier, "--tb=no", *tests]
        command += ["-n", "2", "--dist", "loadfile", "--max-worker-restart", "0"]
        lines = _run(command, stdout=subprocess.PIPE).stdout.splitlines()
        failed = [line.split()[1] for line in lines if line.startswith(("FAILED", "ERROR"))]
        if failed:
            return f"`{failed[0].partition('[')[0]}`", time.monotonic() - begin
    return "none", time.monotonic() - begin


def _run(command, **options):
    return subprocess.run(command, cwd=COPY, text=True, **options)


if __name__ == "__main__":
    main()
