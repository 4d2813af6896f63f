#!/usr/bin/env python3
"""The core without TensorFlow, beside FBGEMM's kernels where fbgemm_gpu is installed.

    python benchmarks/bench_fbgemm.py PART [options of the part] [--json FILE] [--plot FILE.png]

train: steps on a GPU. cpu: steps on a CPU. served: rows of served tables on a GPU, in 8 to 32 bits.
PART --help has more.
"""

from report import run_part

if __name__ == "__main__":
    run_part("fbgemm", ("train", "cpu", "served"), __doc__)
