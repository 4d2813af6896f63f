"""How a build speaks to its user."""

import sys


def say(sentence):
    """Prints one line at once. On stderr: stdout may be captured."""
    print(f"group_embedding: {sentence}", file=sys.stderr, flush=True)


def fail(sentence):
    """Ends the build with one sentence and no traceback."""
    raise SystemExit(f"group_embedding: {sentence}")
