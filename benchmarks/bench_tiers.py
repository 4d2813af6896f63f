#!/usr/bin/env python3
"""Rows that lie below the first memory, while tables are trained and served.

    python benchmarks/bench_tiers.py PART [options of the part] [--json FILE] [--plot FILE.png]

host_rows: lookups in tables larger than a GPU's memory, beside FBGEMM. prefetch: whole steps on
such tables. stores: rows of served models in Redis and RocksDB, beside bare calls of both. tfra:
rows in Redis, beside TensorFlow Recommenders Addons. PART --help has more.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from report import run_part

if __name__ == "__main__":
    run_part("tiers", ("host_rows", "prefetch", "stores", "tfra"), __doc__)
