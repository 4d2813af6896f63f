"""Fixtures of the tests of ranks, which tests/support/session/shared_ranks.py starts."""

import pytest


@pytest.fixture
def one_host(request):
    """For a test of ranks that are on one host."""
    if request.config.option.on_hosts:
        pytest.skip("the ranks of this run are on several hosts")
