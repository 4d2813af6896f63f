"""The line of an error's text that says what is wrong."""

import re

_MAX_LENGTH = 500  # characters
# What TensorFlow writes in front of the message of an op in a graph: which one, and where it was
# made.
_OF_GRAPH = re.compile(
    r"""\s*$
    |Graph\ execution\ error:
    |Detected\ at\ node\ .*\ defined\ at
    |<stack\ traces\ unavailable>
    |\s+File\ "
    |Node:\ '
    |\s*\d+\ (root|derived)\ error\(s\)\ found
    |Traceback\ \(most\ recent\ call\ last\)
    """,
    re.VERBOSE,
)
_PREFIX = re.compile(r"\s*(\(\d+\)\s+[A-Z_]+:\s+)?(\{\{function_node [^}]*\}\}\s*)?")
_SUFFIX = re.compile(r"\s*\[\[\{\{node .*")


def error_line(text):
    """The first line that says something, without nodes of TensorFlow's graph; the first one where
    none does."""
    lines = text.strip().splitlines()
    said = (_without_nodes(line) for line in lines if not _OF_GRAPH.match(line))
    return next(filter(None, said), "".join(lines[:1]))[:_MAX_LENGTH]


def _without_nodes(line):
    return _SUFFIX.sub("", _PREFIX.sub("", line, count=1)).strip()
