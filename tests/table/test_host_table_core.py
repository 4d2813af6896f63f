"""Tables found by key, in host memory."""

from hypothesis import settings
from table_suite import *  # noqa: F403
from table_suite import TableIsADict

TestTableIsADict = TableIsADict.TestCase
TestTableIsADict.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, derandomize=True
)
