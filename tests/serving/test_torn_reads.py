"""No request sees two versions, whatever is applied meanwhile: threads in C++ ask and check."""

import os
import subprocess
from pathlib import Path

import pytest
import tensorflow as tf
from support.cases.shop_models import Versions

import group_embedding as ge
from group_embedding.serving import Publisher

SOURCE = Path(__file__).with_name("torn_reads.cc")
PACKAGE = Path(ge.__file__).parent


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The threads that ask and check."""
    path = tmp_path_factory.mktemp("torn_reads") / "torn_reads"
    flags = [f"-I{PACKAGE / 'include'}", f"-L{PACKAGE}", "-lge_serving", f"-Wl,-rpath,{PACKAGE}"]
    command = ["g++", "-std=c++17", "-O2", "-pthread", str(SOURCE), *flags, "-o", str(path)]
    subprocess.run(command, check=True)
    return path


@pytest.mark.parametrize(
    "commits, requests", [(12, 20_000), pytest.param(1000, 10_000_000, marks=pytest.mark.soak)]
)
def test_no_request_sees_two_versions(program, tmp_path, commits, requests):
    # Given a model whose every number is its version, and its deltas
    model, target = Versions(), tmp_path / "target"
    with Publisher(model, target, signatures=model.serve, base_every=None) as publisher:
        publisher.publish()
        for version in range(2, commits + 2):
            model.set(version)
            publisher.publish()

    # When eight threads ask while the deltas are applied, one after the other
    arguments = [target / "1", target / "versions", str(commits), str(requests)]
    environment = os.environ | {"GROUP_EMBEDDING_TENSORFLOW": str(Path(tf.__file__).parent)}
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True)

    # Then each answer is of one version, and versions only rise
    assert done.returncode == 0, done.stderr
    versions = commits + 1
    expected = f"requests {requests}, versions {versions}, mixed 0, backwards 0\n"
    assert done.stdout == expected
