"""Two, three and four ranks, which stay for all tests of this folder."""

import importlib.util

import pytest
from support.cases.core_runner import core
from support.programs.ranks import Ranks

from group_embedding import testing

_all_ranks = []


@pytest.hookimpl(trylast=True)  # when the fixtures of a module are gone
def pytest_runtest_teardown(item, nextitem):
    """Ranks end with their folder's tests: idle ones still wake a thousand times a second."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        for ranks in _all_ranks:
            ranks.close()


@pytest.fixture(scope="session")
def two_ranks(start_ranks):
    yield from start_ranks(2)


@pytest.fixture(scope="session")
def three_ranks(start_ranks):
    yield from start_ranks(3)


@pytest.fixture(scope="session")
def four_ranks(start_ranks):
    yield from start_ranks(4)


@pytest.fixture(
    scope="session",
    params=[pytest.param(2, marks=pytest.mark.slow), 3],
    ids=["2_ranks", "3_ranks"],
)
def several_ranks(request):
    return request.getfixturevalue({2: "two_ranks", 3: "three_ranks"}[request.param])


@pytest.fixture(scope="session")
def start_ranks(request):
    """start_ranks(n) yields `Ranks`: copies of one process, or where GPUs are, n of horovodrun."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")

    def start(num_ranks):
        if 0 < core.num_devices() < num_ranks:
            pytest.skip(f"needs {num_ranks} NVIDIA GPUs, or none")
        if core.num_devices():
            made = testing.Ranks(num_ranks)
        else:
            made = Ranks(request.getfixturevalue("starter"), num_ranks)
        with made:
            _all_ranks.append(made)
            yield made

    return start
