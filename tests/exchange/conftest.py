"""Two, three and four ranks, which stay for all tests of this folder."""

import importlib.util

import pytest

from group_embedding.testing import Ranks


@pytest.fixture(scope="session")
def two_ranks():
    yield from _ranks(2)


@pytest.fixture(scope="session")
def three_ranks():
    yield from _ranks(3)


@pytest.fixture(scope="session")
def four_ranks():
    yield from _ranks(4)


@pytest.fixture(scope="session", params=[2, 3], ids=["2_ranks", "3_ranks"])
def several_ranks(request):
    return request.getfixturevalue({2: "two_ranks", 3: "three_ranks"}[request.param])


def _ranks(num_ranks):
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    with Ranks(num_ranks) as ranks:
        yield ranks
