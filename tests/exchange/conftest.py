"""Two, three and four ranks, which stay for all tests of this folder."""

import importlib.util

import pytest
from support.cases.core_runner import core

from group_embedding.testing import Ranks

_all_ranks = []


@pytest.hookimpl(trylast=True)  # when the fixtures of a module are gone
def pytest_runtest_teardown(item, nextitem):
    """Ranks end with their folder's tests: idle ones still wake a thousand times a second."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        for ranks in _all_ranks:
            ranks.close()


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
    if 0 < core.num_devices() < num_ranks:
        pytest.skip(f"needs {num_ranks} NVIDIA GPUs, or none")
    with Ranks(num_ranks) as ranks:
        _all_ranks.append(ranks)
        yield ranks
