"""Two ranks, which stay for all tests of this folder."""

import importlib.util

import pytest

from group_embedding.testing import Ranks


@pytest.fixture(scope="session")
def two_ranks():
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    with Ranks(2) as ranks:
        yield ranks
