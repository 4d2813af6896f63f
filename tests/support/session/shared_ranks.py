"""Two, three and four ranks, which stay for all tests of a folder that need them.

tests/conftest.py has these fixtures, and the hook that ends ranks, for all folders.
"""

import contextlib
import importlib.util

import pytest

# How many ranks a test has by each fixture.
_NUMBERS = {"two_ranks": {2}, "three_ranks": {3}, "several_ranks": {2, 3}, "four_ranks": {4}}
_started = []


@pytest.hookimpl(trylast=True)  # when the fixtures of a module are gone
def pytest_runtest_teardown(item, nextitem):
    """Ranks end with the last file that needs them: idle ones still wake a hundred times a second.
    Those that end too early start again. Each folder has its own, as `sok.init` puts other
    optimizers into TensorFlow."""
    if not _started or nextitem is not None and nextitem.path == item.path:
        return
    is_of_folder = nextitem is not None and nextitem.path.parent == item.path.parent
    names = nextitem.fixturenames if is_of_folder else ()
    needed = set().union(*(_NUMBERS.get(name, set()) for name in names))
    for ranks in _started:
        if ranks.num_ranks not in needed:
            ranks.close()


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


@pytest.fixture(scope="session")
def starter():
    """The process that starts the ranks of all jobs as copies of itself."""
    _need_horovod()
    from support.programs.ranks import Starter

    starter = Starter()
    yield starter
    starter.close()


@pytest.fixture(scope="session")
def start_ranks(request):
    """`with start_ranks(n) as ranks`: n copies of one process, or of horovodrun where GPUs are;
    with --on-hosts, on several hosts."""
    _need_horovod()
    from hosts.host_ranks import ranks_on_hosts
    from support.cases.core_runner import core
    from support.programs.ranks import Ranks

    from group_embedding import testing

    @contextlib.contextmanager
    def start(num_ranks):
        if 0 < core.num_devices() < num_ranks:
            pytest.skip(f"needs {num_ranks} NVIDIA GPUs, or none")
        if request.config.option.on_hosts:
            made = ranks_on_hosts(request.getfixturevalue("starter"), num_ranks)
        elif core.num_devices():
            made = testing.Ranks(num_ranks)
        else:
            made = Ranks(request.getfixturevalue("starter"), num_ranks)
        with made as ranks:
            _started.append(ranks)
            yield ranks

    return start


def _need_horovod():
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
