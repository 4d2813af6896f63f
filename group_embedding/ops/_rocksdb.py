"""Tells the native libraries which RocksDB they may load, for tables with a disk tier."""

import importlib.util
import os
from pathlib import Path

VARIABLE = "GROUP_EMBEDDING_ROCKSDB"


def name_rocksdb():
    """Names the RocksDB of the `aimrocks` wheel, if it is installed and the user named no other.

    Nothing is loaded or imported: the native library does that when the first such table is made.
    """
    wheel = importlib.util.find_spec("aimrocks")
    if wheel is None:
        return
    file = Path(wheel.origin).with_name("librocksdb.so")
    if file.exists():
        os.environ.setdefault(VARIABLE, str(file))
