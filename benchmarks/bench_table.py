#!/usr/bin/env python3
"""Tables found by key: find and insert, growth, plans, budgets, and slots of 16 bits.

    python benchmarks/bench_table.py PART [options of the part] [--json FILE] [--plot FILE.png]

gpu: beside HierarchicalKV; evict: the same, of full tables that evict. cpu: through TensorFlow,
beside TensorFlow Recommenders Addons. growth: how long growth stops training. gpu_growth: memory of
a table on a GPU that grows. find: keys located by several builds. budget: a table that evicts its
lowest keys, on a CPU. plan: planned bytes beside those of tables. slots: AUC with slots in float32
and bfloat16. update: the time of updates with both. PART --help has more.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from report import run_part

if __name__ == "__main__":
    run_part(
        "table",
        (
            "gpu",
            "evict",
            "cpu",
            "growth",
            "gpu_growth",
            "find",
            "budget",
            "plan",
            "slots",
            "update",
        ),
        __doc__,
    )
