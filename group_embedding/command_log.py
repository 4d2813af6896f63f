"""Quiet commands: `python -m group_embedding checkpoint`, its former spelling
`group_embedding.checkpoint`, and `group_embedding.convert` print their own lines, and none of
TensorFlow's log.

TensorFlow reads these variables when it is imported, so the package imports this module first.
"""

import os
import sys

_COMMANDS = {"group_embedding.checkpoint", "group_embedding.convert"}


def _is_quiet(words):
    """Returns whether the words of Python's own command line run one of the commands."""
    pairs = zip(words, words[1:])
    return not _COMMANDS.isdisjoint(words) or ("group_embedding", "checkpoint") in pairs


if sys.argv[:1] == ["-m"] and _is_quiet(sys.orig_argv):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # TensorFlow 2.21 announces oneDNN at any level, and the commands compute nothing.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
