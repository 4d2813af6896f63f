"""`python -m group_embedding.simulate`, as a user calls it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from group_embedding.ranks.simulate.__main__ import main

TABLES = [
    {"name": "item", "rows": 1_000_000, "dim": 64, "ids": 20, "alpha": 1.05},
    {"name": "day", "rows": 7, "dim": 8},
]


@pytest.fixture
def tables(tmp_path):
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(TABLES))
    return path


def printed(capsys, *arguments):
    """The lines that the command prints, {(placement, ranks): {column: text}}."""
    main(list(map(str, arguments)))
    header, *lines = capsys.readouterr().out.splitlines()
    names = [
        name.replace("step ms", "step_ms") for name in header.replace("step ms", "step_ms").split()
    ]
    cells = [dict(zip(names, line.split())) for line in lines]
    return {(of["placement"], of["ranks"]): of for of in cells}


def test_tables_of_a_file_over_more_and_more_ranks(tables, tmp_path, capsys):
    # Given the tables of a model
    # When the command computes and draws steps of 1 to 4,096 ranks
    picture = tmp_path / "steps.png"
    arguments = ["--tables", tables, "--placement", "rows", "best", "--plot", picture]
    found = printed(capsys, *arguments)
    # Then each placement has a line for each number, and many ranks take longer than one
    assert len(found) == 10
    assert float(found["rows", "4,096"]["step_ms"]) > float(found["rows", "1"]["step_ms"])
    assert found["rows", "64"]["limit"] == "between_hosts"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_trace_replaces_the_law(tables, tmp_path, capsys):
    # Given a trace in which every sample names the same twenty items
    trace = tmp_path / "trace.npz"
    np.savez(trace, item=np.tile(np.arange(20), (1000, 1)))
    # When a step of two hosts is computed with and without it
    arguments = ["--tables", tables, "--ranks", 16]
    by_law = printed(capsys, *arguments)["rows", "16"]
    traced = printed(capsys, *arguments, "--trace", trace)["rows", "16"]
    # Then hardly any row travels
    assert float(traced["between_hosts"]) < 0.001 < float(by_law["between_hosts"])


def test_ranks_with_cores_of_a_cpu_wait_for_their_link(tables, capsys):
    # Given two hosts without GPUs, 5 ms one way from each other
    hosts = {"ranks": 2, "ranks-of-host": 1, "samples": 1024, "round-trip-ms": 10}
    arguments = [word for name, value in hosts.items() for word in (f"--{name}", value)]
    arguments += ["--tables", tables, "--machine", "cpu"]
    # When a step is computed, Then it waits as often as is said, and more cores work faster
    slow, fast = (
        printed(capsys, *arguments, "--round-trips", trips, "--cores", cores)["rows", "2"]
        for trips, cores in ((3, 1), (1.5, 4))
    )
    assert float(slow["waiting"]) == pytest.approx(30, abs=0.01)
    assert float(fast["waiting"]) == pytest.approx(15, abs=0.01)
    assert float(fast["kernels"]) == pytest.approx(float(slow["kernels"]) / 4, abs=0.01)
    with pytest.raises(SystemExit, match="--cores: expected at least 1, got 0"):
        main(["--tables", str(tables), "--machine", "cpu", "--cores", "0"])


@pytest.mark.parametrize(
    "content, message",
    [
        ({"name": "item"}, "expected a list of tables, got dict"),
        ([{"name": "item", "rows": 5}], "table 0: expected name, rows, dim"),
        ([{"name": "item", "rows": 0, "dim": 4}], "table 'item': rows: expected a number above 0"),
        ([{"name": "a", "rows": 9, "dim": 4, "alpha": -1}], "alpha: expected 0 or more, got -1"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, content, message):
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=message):
        main(["--tables", str(path)])


def test_a_trace_of_another_table_is_refused(tables, tmp_path):
    trace = tmp_path / "trace.npz"
    np.savez(trace, items=np.arange(20))
    with pytest.raises(SystemExit, match="expected names of tables, got 'items'.*item"):
        main(["--tables", str(tables), "--trace", str(trace)])


def test_the_command_runs_by_its_public_name():
    command = [sys.executable, "-m", "group_embedding.simulate", "--model", "dlrm", "--ranks", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "limit" in done.stdout.splitlines()[0]
