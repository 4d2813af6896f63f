"""Quiet commands: `python -m group_embedding.checkpoint` prints its own lines, and none of
TensorFlow's log.

TensorFlow reads these variables when it is imported, so the package imports this module first.
"""

import os
import sys

if sys.argv[:1] == ["-m"] and "group_embedding.checkpoint" in sys.orig_argv:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # TensorFlow 2.21 announces oneDNN at any level, and the command computes nothing.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
