"""Damaged models and deltas are refused, or answer; the process goes on."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.cases.shop_models import Shop, change

from group_embedding.serving import Publisher

SCRIPT = Path(__file__).with_name("open_hostile.py")
CASES_OF_A_PROCESS = 500


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A base and a delta."""
    folder = tmp_path_factory.mktemp("hostile") / "target"
    model = Shop()
    with Publisher(model, folder, signatures=model.serve) as publisher:
        publisher.publish()
        change(model, 2)
        publisher.publish()
    return folder


def run_cases(target, work, first, end):
    """(results by case, what the process said when it died, or None)."""
    command = [sys.executable, str(SCRIPT), str(target), str(work), str(first), str(end)]
    quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    limit = 120 + 5 * (end - first)
    done = subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=limit)
    lines = [line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith("case ")]
    died = None if done.returncode == 0 else f"{done.returncode}: {done.stderr[-2000:]}"
    return {int(line[1]): line[2] if len(line) > 2 else "" for line in lines}, died


@pytest.mark.parametrize("cases", [40, pytest.param(10_000, marks=pytest.mark.soak)])
def test_damaged_folders(target, tmp_path, cases):
    # Given a model and a delta, of which each case damages a copy
    results, crashes, first = {}, {}, 0

    # When each is opened, asked and updated
    while first < cases:
        end = min(first + CASES_OF_A_PROCESS, cases)
        found, died = run_cases(target, tmp_path / "work", first, end)
        results |= found
        first = end
        if died is not None:
            first = max(found, default=end) + 1
            crashes[first - 1] = died

    # Then no process ended before its last case, most damage was refused, and some did no harm
    assert crashes == {}
    kinds = Counter(result.partition(":")[0] for result in results.values())
    assert len(results) == cases and len(kinds) > 2
    assert cases / 2 < cases - kinds["opened"] < cases
