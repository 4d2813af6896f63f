#!/usr/bin/env python3
"""Training while its tables are saved: how long it waits, and what an upload has to send.

    python benchmarks/bench_save.py PART [options of the part] [--json FILE] [--plot FILE.png]

waits: saves into a folder, by each method. upload: uploads of checkpoints to a URL. PART --help has
more.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

from report import run_part

if __name__ == "__main__":
    run_part("save", ("waits", "upload"), __doc__)
