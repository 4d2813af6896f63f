"""Fixtures of the tests of ranks, which tests/support/session/shared_ranks.py starts."""

import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def end_processes_with_gpus():
    """Ends the processes that `gpu_processes.run_ranks` keeps for the next test."""
    yield
    if "ranks.exchange.gpu_processes" in sys.modules:
        sys.modules["ranks.exchange.gpu_processes"].close_ranks()


@pytest.fixture
def one_host(request):
    """For a test of ranks that are on one host."""
    if request.config.option.on_hosts:
        pytest.skip("the ranks of this run are on several hosts")
