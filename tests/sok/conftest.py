"""The ranks of tests/exchange, also for this folder."""

from exchange.conftest import three_ranks, two_ranks  # noqa: F401
