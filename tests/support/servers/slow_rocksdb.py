"""A RocksDB for tests, whose reads are slow or fail when a test says so.

A process loads one RocksDB: servers and programs that tests start get this one by the environment.
"""

import functools
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".cc")


def real():
    """The path of the installed library; skips without it."""
    found = Path(sysconfig.get_path("purelib"), "aimrocks", "librocksdb.so")
    named = os.environ.get("GROUP_EMBEDDING_ROCKSDB")
    if named is None and not found.exists():
        pytest.skip("needs RocksDB: pip install aimrocks")
    return Path(named or found)


@functools.cache
def build(folder):
    """Compiles it, once for a folder."""
    library = Path(folder, "slow_rocksdb.so")
    compile = ["g++", "-std=c++17", "-shared", "-fPIC", SOURCE, "-o", library]
    # --no-as-needed: symbols of the real one are found through this one's dependencies.
    linked = ["-Wl,--no-as-needed", real(), f"-Wl,-rpath,{real().parent}", "-ldl"]
    subprocess.run([*compile, *linked], check=True)
    return library


class SlowRocksdb:
    """Its library's environment, and how it behaves now.

    Args:
        folder: for the library.
    """

    def __init__(self, folder):
        self._mood = Path(folder, "mood")
        self.environment = {
            "GROUP_EMBEDDING_ROCKSDB": str(build(folder)),
            "REAL_ROCKSDB": str(real()),
            "SLOW_ROCKSDB": str(self._mood),
        }
        self.be("well")

    def be(self, words):
        """words: "well", "fail", or "sleep SECONDS"."""
        fresh = self._mood.with_suffix(".new")
        fresh.write_text(words)
        fresh.replace(self._mood)
