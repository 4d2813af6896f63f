"""Tiers of tests: `make test` runs the fast ones, `make test-all` the slow ones too, and
`make test-tensorflow`, of the fast ones, those in which TensorFlow has a part."""

import itertools
from fnmatch import fnmatch

import pytest

# The files, below tests/, of tests that are the same on every TensorFlow: of the core, of processes
# and stores without it, of the tree and of the run itself.
WITHOUT_TENSORFLOW = [
    "*/test_*_core.py",
    "table/*",
    "hosts/test_bed.py",
    "serving/stores/*",
    "serving/server/test_hostile_http*.py",
    "test_architecture.py",
    "test_maps.py",
    "test_native_architecture.py",
    "test_session.py",
    "test_storage_servers.py",
]

# The files of tests of a program that is built once for all TensorFlows, such as the server. Any
# TensorFlow may write their models; other tests serve the models of each.
OF_ONE_PROGRAM = [
    "serving/server/test_command.py",
    "serving/server/test_ended_requests.py",
    "serving/server/test_grpc.py",
    "serving/server/test_inference_protocol.py",
    "serving/server/test_joined_requests.py",
    "serving/server/test_load.py",
    "serving/server/test_message_memory.py",
    "serving/server/test_options.py",
    "serving/server/test_perf_analyzer.py",
    "serving/server/test_remote_models.py",
    "serving/server/test_request_fuzz.py",
    "serving/server/test_targets.py",
    "serving/server/test_tier_failures.py",
    "serving/test_redis_*.py",
    "test_build.py",
]

# Their servers take long to start, and many processes.
SLOW_FIXTURES = {"hdfs_server", "hdfs_folder"}


def by_day(values, chosen, nightly=()):
    """The values of a parameter, or tuples of several, of which all but the chosen ones are marked
    slow, and the nightly ones soak."""

    def marked(value):
        values = value if isinstance(value, tuple) else (value,)
        mark = pytest.mark.soak if value in nightly else pytest.mark.slow
        return pytest.param(*values, marks=mark)

    return [value if value in chosen else marked(value) for value in values]


def values_of_run(request, name):
    """The values of a parameter of the tests of this file that this run has: a fixture that makes
    something for each of them makes nothing for those that were left out."""
    items = [item for item in request.session.items if item.path == request.path]
    params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return list(dict.fromkeys(of_item[name] for of_item in params if name in of_item))


def is_without_tensorflow(path):
    """path: below tests/."""
    return any(fnmatch(path, pattern) for pattern in WITHOUT_TENSORFLOW)


def is_of_one_program(path):
    """path: below tests/."""
    return any(fnmatch(path, pattern) for pattern in OF_ONE_PROGRAM)


def mark_without_tensorflow(items, folder):
    for item in items:
        path = item.path.relative_to(folder).as_posix()
        if is_without_tensorflow(path) or is_of_one_program(path):
            item.add_marker(pytest.mark.without_tensorflow)


def mark_slow(items):
    """Marks tests slow that need the machine to themselves or slow servers, and of each test marked
    `covering(n)` the combinations of its parameters that have no n values together that others
    lack: with 1 each value runs by day, with 2 each pair of values."""
    products = {}
    for item in items:
        if item.get_closest_marker("timed") or SLOW_FIXTURES & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)
        covering = item.get_closest_marker("covering")
        if covering and not any(map(item.get_closest_marker, ("gpu", "slow", "soak"))):
            key = item.path, item.originalname, covering.args[0]
            products.setdefault(key, []).append(item)
    for (*_, strength), combinations in products.items():
        needed = cover([item.callspec.indices for item in combinations], strength)
        for number, item in enumerate(combinations):
            if number not in needed:
                item.add_marker(pytest.mark.slow)


def cover(combinations, strength):
    """The numbers of combinations, dicts {parameter: value}, that together have every `strength`
    values that any combination has. Greedy: the one with the most that are left comes next, the
    first of equals."""
    has = [set(itertools.combinations(sorted(c.items()), strength)) for c in combinations]
    left = set().union(*has)
    chosen = set()
    while left:
        best = max(range(len(has)), key=lambda number: len(has[number] & left))
        chosen.add(best)
        left -= has[best]
    return chosen
