"""The core on NumPy and CUDA arrays, of tests/cc/python: built by `make tested`."""

from support._core import *  # noqa: F403

import group_embedding  # noqa: F401, says where RocksDB is
