"""The libraries of the server: it names them, and those that are linked in have the updates that
mend known holes."""

import re
import subprocess
from pathlib import Path

import pytest

import group_embedding as ge

LIBRARIES = {"nghttp2", "protobuf", "Boost", "OpenSSL", "zlib"}
# Debian 12's newest of what is linked in, as of 2026-11. Debian keeps a version's number and mends
# it, so that the package's counts: https://security-tracker.debian.org/tracker/source-package/NAME.
# OpenSSL and zlib are shared libraries, and the machine's.
NEWEST = {
    # With CVE-2023-44487 (calls that are reset), CVE-2024-28182 (heads without an end),
    # CVE-2026-27135 (a state that is not checked)
    "libnghttp2-dev": ("nghttp2", "1.52.0-1+deb12u3"),
    # With CVE-2024-7254 (nesting without an end)
    "libprotobuf-dev": ("protobuf", "3.21.12-3+deb12u1"),
    "libboost1.81-dev": ("Boost", "1.81.0-5+deb12u1"),
}


def test_the_version_names_the_libraries(program):
    lines = versions_of(program)

    assert lines.pop("ge-serve") == ge.__version__
    assert set(lines) == LIBRARIES


@pytest.mark.parametrize("package", NEWEST)
def test_what_is_linked_in_is_the_newest_of_debian(program, package):
    # Given a machine of Debian 12, where the server was built
    if "VERSION_CODENAME=bookworm" not in Path("/etc/os-release").read_text():
        pytest.skip("these are versions of Debian 12")
    query = ["dpkg-query", "-W", "-f=${Version}", package]
    found = subprocess.run(query, capture_output=True, text=True, check=True).stdout

    # Then its package is no older than the newest that is known, and is the one in the program
    name, newest = NEWEST[package]
    older = subprocess.run(["dpkg", "--compare-versions", found, "lt", newest]).returncode == 0
    assert not older, f"{package} {found}: apt-get install {package}, and make serving"
    assert re.match(r"[\d.]*\d", found)[0] == versions_of(program)[name]


def versions_of(program):
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
