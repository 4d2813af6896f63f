"""Two and three ranks, which stay for all tests of this folder."""

import pytest

from group_embedding.testing import Ranks


@pytest.fixture(scope="session")
def two_ranks():
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def three_ranks():
    with Ranks(3) as ranks:
        yield ranks


@pytest.fixture(scope="session", params=[2, 3], ids=["2_ranks", "3_ranks"])
def several_ranks(request):
    return request.getfixturevalue({2: "two_ranks", 3: "three_ranks"}[request.param])
