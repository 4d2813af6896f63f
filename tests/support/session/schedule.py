"""Units of tests, each of which one process runs, and their order: files, and tests of ranks."""

import random

# Folders whose tests share ranks. Two processes would each start ranks of their own, which is
# slower than to wait for those of one.
SHARED_RANKS = ("tests/ranks/exchange/", "tests/compat/sok/")
RANKS = ("two_ranks", "three_ranks", "several_ranks", "four_ranks")  # fixtures


def unit_of(test):
    """The unit of a test, which one process runs: "ranks", or the file of the test."""
    return "ranks" if test.startswith(SHARED_RANKS) else test.partition("::")[0]


def first_ranks(items):
    """The order of tests: the long unit of ranks is first. In it
    files that need the same ranks follow each other, so that idle ranks can end."""
    needed = {}  # by file
    for item in items:
        found = {RANKS.index(name) for name in RANKS if name in getattr(item, "fixturenames", ())}
        needed.setdefault(item.path, set()).update(found)

    def place(item):
        if unit_of(item.nodeid) != "ranks":
            return 1, []
        return 0, sorted(needed[item.path])

    return sorted(items, key=place)


def shuffled(items, seed):
    """A random order of units, of files in them and of tests: a file's fixtures are made once."""
    rng = random.Random(seed)
    units = {}
    for item in items:
        files = units.setdefault(unit_of(item.nodeid), {})
        files.setdefault(item.path, []).append(item)
    return [
        item
        for unit in _in_any_order(units.values(), rng)
        for file in _in_any_order(unit.values(), rng)
        for item in _in_any_order(file, rng)
    ]


def scheduler(config, log):
    """pytest-xdist's scheduler of these units."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return unit_of(nodeid)

    return Units(config, log)


def _in_any_order(things, rng):
    things = list(things)
    rng.shuffle(things)
    return things
