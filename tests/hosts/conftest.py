"""Beds of hosts, and jobs on them, for the tests of this folder."""

import pytest
from hosts.bed import Bed, compile_link, why_not


@pytest.fixture(scope="session")
def link(tmp_path_factory):
    """The relay between hosts, compiled."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    program = tmp_path_factory.mktemp("link") / "link"
    compile_link(program)
    return program


@pytest.fixture
def make_bed(link, tmp_path):
    """make_bed(num_hosts, own_folders=()) -> a `Bed`, which ends with the test."""
    beds = []

    def make(num_hosts, own_folders=()):
        beds.append(Bed(tmp_path / f"bed_{len(beds)}", link, num_hosts, own_folders))
        return beds[-1]

    yield make
    for bed in beds:
        bed.close()
