#!/usr/bin/env python3
"""Tables over ranks: steps, exchanges, and what ranks of a host request alike.

    python benchmarks/bench_ranks.py PART [options of the part] [--json FILE] [--plot FILE.png]

gpus: a process for each GPU of a host, the core alone. cpus: processes that share a CPU. hosts:
ranks on several hosts, by the delay of the link between them. ahead: their steps while the next
batch's rows come. overlap: rows that the ranks of a host request of others alike. two_levels: such
rows cross between hosts once a rank, or once a host. sums: owners on another host send rows, or
sums of them. hot: the owner of a key that is in much of a batch. PART --help has more.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from report import run_part

if __name__ == "__main__":
    run_part(
        "ranks",
        ("gpus", "cpus", "hosts", "ahead", "overlap", "two_levels", "sums", "hot"),
        __doc__,
    )
