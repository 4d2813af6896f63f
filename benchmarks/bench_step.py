#!/usr/bin/env python3
"""The host's time of a training step through TensorFlow, apart from its lookups.

    python benchmarks/bench_step.py PART [options of the part] [--json FILE] [--plot FILE.png]

tables: a step by how many tables it has. first_call: the first call of a step, in which its graph
is made. dense_update: dense variables updated by one op, beside one by one.
checkouts: steps of two checkouts by turns. PART --help has more.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

from report import run_part

if __name__ == "__main__":
    run_part("step", ("tables", "first_call", "dense_update", "checkouts"), __doc__)
