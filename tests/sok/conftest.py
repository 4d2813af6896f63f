"""The ranks of tests/exchange, also for this folder."""

from exchange.conftest import pytest_runtest_teardown, three_ranks, two_ranks  # noqa: F401
