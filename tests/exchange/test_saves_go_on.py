"""Models that two ranks save as checkpoints go on in new processes, of as many ranks or of one, as
if never interrupted."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))  # in a rank

import saving_cases

import group_embedding as ge
from group_embedding.testing import Ranks

NAMES = ["Eager_2", "Graph_3", "GraphOfRanks_2", "Sok_3"]
_SECONDS = 30  # that a case may take


def train(names, folder):
    ge.enable_distributed_strategy()
    return saving_cases.run_all(saving_cases.train, names, folder)


def resume(names, folder):
    ge.enable_distributed_strategy()
    return saving_cases.run_all(saving_cases.resume, names, folder)


@pytest.fixture(scope="module")
def names(request):
    """The cases of this run."""
    module = request.path
    items = [item for item in request.session.items if item.path == module]
    return sorted({item.callspec.params["name"] for item in items})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def trained(two_ranks, names, folder):
    return two_ranks.run(train, names, folder, timeout=_SECONDS * len(names))


@pytest.fixture(scope="module")
def resumed(trained, names, folder):
    with Ranks(2) as ranks:
        return ranks.run(resume, names, folder, timeout=_SECONDS * len(names))


@pytest.fixture(scope="module")
def resumed_by_one(trained, names, folder):
    with Ranks(1) as one:
        return one.run(resume, names, folder, timeout=_SECONDS * len(names))


@pytest.mark.parametrize("name", NAMES)
def test_a_model_goes_on_in_other_ranks(name, trained, resumed):
    # Given a model that was trained, saved and trained further
    for of_rank, further in zip(trained, resumed):
        expected, found = _results(of_rank[name], further[name])
        # When new processes load it, predict and train it further
        # Then what they predict is the same to the bit, both times
        assert np.ptp(expected[0]) > 0 and (expected[0] != expected[1]).any()
        np.testing.assert_array_equal(found[0], expected[0])
        if found[1] is not None:
            np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_model_goes_on_in_one_process(name, trained, resumed_by_one):
    # Given the same
    expected, found = _results(trained[0][name], resumed_by_one[0][name])
    # When one process loads it
    # Then it predicts the same to the bit, and trains on as far as sums of another order go
    np.testing.assert_array_equal(found[0], expected[0])
    if found[1] is not None:
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)


def _results(*of_processes):
    for results in of_processes:
        assert not isinstance(results, str), results
    return of_processes
