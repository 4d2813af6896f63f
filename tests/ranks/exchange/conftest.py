"""Two, three and four ranks, which stay for all tests of this folder."""

import contextlib
import importlib.util

import pytest
from hosts.host_ranks import ranks_on_hosts
from support.cases.core_runner import core
from support.programs.ranks import Ranks

from group_embedding import testing

_all_ranks = []


@pytest.hookimpl(trylast=True)  # when the fixtures of a module are gone
def pytest_runtest_teardown(item, nextitem):
    """Ranks end with the last file that needs them: idle ones still wake a hundred times a second.
    Those that end too early start again."""
    if nextitem is not None and nextitem.path == item.path:
        return
    needed = _numbers_of(nextitem)
    for ranks in _all_ranks:
        if ranks.num_ranks not in needed:
            ranks.close()


def _numbers_of(item):
    """How many ranks the fixtures of a test have."""
    numbers = {"two_ranks": {2}, "three_ranks": {3}, "several_ranks": {2, 3}, "four_ranks": {4}}
    names = item.fixturenames if item is not None else ()
    return set().union(*(numbers.get(name, set()) for name in names))


@pytest.fixture(scope="session")
def two_ranks(start_ranks):
    with start_ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def three_ranks(start_ranks):
    with start_ranks(3) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def four_ranks(start_ranks):
    with start_ranks(4) as ranks:
        yield ranks


@pytest.fixture(
    scope="session",
    params=[pytest.param(2, marks=pytest.mark.soak), 3],
    ids=["2_ranks", "3_ranks"],
)
def several_ranks(request):
    return request.getfixturevalue({2: "two_ranks", 3: "three_ranks"}[request.param])


@pytest.fixture
def one_host(request):
    """For a test of ranks that are on one host."""
    if request.config.option.on_hosts:
        pytest.skip("the ranks of this run are on several hosts")


@pytest.fixture(scope="session")
def start_ranks(request):
    """`with start_ranks(n) as ranks`: n copies of one process, or of horovodrun where GPUs are;
    with --on-hosts, on several hosts."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")

    @contextlib.contextmanager
    def start(num_ranks):
        if 0 < core.num_devices() < num_ranks:
            pytest.skip(f"needs {num_ranks} NVIDIA GPUs, or none")
        with contextlib.ExitStack() as stack:
            if request.config.option.on_hosts:
                starter = request.getfixturevalue("starter")
                made = stack.enter_context(ranks_on_hosts(starter, num_ranks))
            elif core.num_devices():
                made = testing.Ranks(num_ranks)
            else:
                made = Ranks(request.getfixturevalue("starter"), num_ranks)
            _all_ranks.append(stack.enter_context(made))
            yield made

    return start
