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
        ([], "expected a list of tables, got an empty list"),
        ([{"name": "item", "rows": 5}], "table 0: expected name, rows, dim"),
        ([{"name": 7, "rows": 5, "dim": 4}], "table 0: expected name to be a string, got 7"),
        ([{"name": "a", "rows": 0, "dim": 4}], "'a': expected rows to be an int of at least 1"),
        ([{"name": "a", "rows": 10.5, "dim": 4}], "'a': expected rows to be an int .*, got 10.5"),
        ([{"name": "a", "rows": 9, "dim": 4, "ids": -1}], "'a': expected ids to be a number above"),
        ([{"name": "a", "rows": 9, "dim": 4, "alpha": -1}], "expected alpha to be 0 or more"),
        ([{"name": "a", "rows": 9, "dim": 4}] * 2, "a name for each table, got two named 'a'"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, content, message):
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=f"{path}: .*{message}"):
        main(["--tables", str(path)])


@pytest.mark.parametrize("argument", ["--tables", "--trace"])
def test_a_file_of_another_form_is_named(tmp_path, argument):
    path = tmp_path / "file"
    path.write_text("no json")
    expected = {"--tables": "JSON", "--trace": "an .npz file of integer arrays"}[argument]
    with pytest.raises(SystemExit, match=f"{path}: expected {expected}"):
        main([argument, str(path)])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--link-gb-s 0", "expected gb_s to be a number above 0, got 0.0"),
        ("--round-trip-ms -1", "expected round_trip_ms to be 0 or more, got -1.0"),
        ("--dense-ms nan", "expected dense_ms to be a finite number, got nan"),
        ("--program-ms -5", "expected program_ms to be 0 or more, got -5.0"),
        ("--alpha -1", "expected alpha to be 0 or more, got -1.0"),
        ("--ranks 0", "expected ranks to be an int of at least 1, got 0"),
        ("--plot /nonexistent/steps.png", "/nonexistent/steps.png"),
        ("--plot steps.foo", "foo"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(SystemExit, match=message):
        main(["--model", "dlrm", "--ranks", "2", *arguments.split()])


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
