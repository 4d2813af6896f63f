"""`python -m group_embedding.serving` as the server."""

import subprocess
import sys
from pathlib import Path

import pytest

from group_embedding.serving import __main__ as command
from group_embedding.serving import server
from group_embedding.serving.server import process

ROOT = Path(__file__).resolve().parents[3]


def test_it_is_the_server(double, model, tmp_path):
    # Given a model
    path = model(tmp_path / "3")

    # When the module gets the server's arguments
    arguments = ["--model", f"m={path}", "--library", double, "--grpc-port=0", "--rest-port=0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "group_embedding.serving", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )

    # Then the process is the server, which ends by itself when told to
    assert server.READY.search(process.stdout.readline().strip())
    process.terminate()
    assert process.wait(30) == 0
    process.stdout.close()


def test_a_server_that_is_not_built_or_lacks_a_library(monkeypatch, capsys, tmp_path):
    # Given no program
    monkeypatch.setattr(process, "PROGRAM", tmp_path / "ge-serve")

    # When it is asked for, Then one sentence says how to build it
    assert command.main(["serve", "--help"]) == 1
    assert "make serving" in capsys.readouterr().err

    # Given a program that lacks a shared library
    error = "ge-serve: error while loading shared libraries: libssl.so.3: cannot open"
    process.PROGRAM.write_text(f"#!/bin/sh\necho '{error}' >&2\nexit 127\n")
    process.PROGRAM.chmod(0o755)

    # When it is asked for, Then one sentence says what to install
    assert command.main(["--model", "m=p"]) == 1
    assert "sudo apt-get install libssl3" in capsys.readouterr().err


def test_the_process_says_why_it_did_not_start(double, tmp_path):
    process = server.ServerProcess({"m": tmp_path / "none"}, "--library", str(double))

    with pytest.raises(RuntimeError, match="ge-serve did not start: .*cannot read folder"), process:
        pass
