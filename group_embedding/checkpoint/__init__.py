"""Checkpoints of tables whose rows are found by key. README.md has the format of their files."""

import os
import sys

# `python -m group_embedding.checkpoint` prints its own lines and not TensorFlow's log. Python
# imports this package before the command, and TensorFlow reads the variable when it is imported.
if sys.argv[:1] == ["-m"] and __name__ in sys.orig_argv:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # oneDNN is announced at any level by TensorFlow 2.21, and the command computes nothing.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

from group_embedding.checkpoint.background import BackgroundSave, save_changes  # noqa: E402
from group_embedding.checkpoint.hook import CheckpointSaverHook  # noqa: E402
from group_embedding.checkpoint.snapshots import changes_only  # noqa: E402

__all__ = ["BackgroundSave", "CheckpointSaverHook", "changes_only", "save_changes"]
