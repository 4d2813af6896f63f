"""Models that two ranks save go on in new processes, of as many ranks or of one, as if never
interrupted, and what one process saved goes on over two ranks; SavedModels are refused."""

from pathlib import Path

import numpy as np
import pytest
from support.programs import saving_cases
from support.session.tiers import by_day, values_of_run

import group_embedding as ge

SERVED = [name for name, form in saving_cases.FORMS.items() if not form.trains_on]
# With tables by key, and by row number where the form has them.
NAMES = [f"{form}_3" for form in saving_cases.FORMS if form not in SERVED]
# What they save is read by any number of ranks. (Each of the rest saves as one of these does.)
WHOLE = ["Eager_3", "Graph_3", "GraphOfRanks_3", "Sok_3"]
WHOLE += ["Functional_3", "FunctionalWeights_3", "FunctionalCheckpoint_3"]
BY_DAY = ["Graph_3", "Functional_3"]
_SECONDS = 30  # that a case may take


def train(names, folder):
    ge.enable_distributed_strategy()
    return saving_cases.run_all(saving_cases.train, names, folder)


def resume(names, folder):
    ge.enable_distributed_strategy()
    return saving_cases.run_all(saving_cases.resume, names, folder)


def refused(form, folder):
    """The error of a form that is saved where ranks are, and what it has left."""
    ge.enable_distributed_strategy()
    rank = ge.exchange.current().rank
    case = saving_cases.make(f"{form}_3", folder)
    case.train(0)
    with pytest.raises(ValueError) as error:
        case.save(f"{folder}/{rank}")
    return str(error.value), [str(path) for path in Path(folder).rglob("saved_model.pb")]


@pytest.fixture(scope="module")
def names(request):
    """The cases of this run."""
    return values_of_run(request, "name")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def trained(two_ranks, names, folder):
    return two_ranks.run(train, names, folder, timeout=_SECONDS * len(names))


@pytest.fixture(scope="module")
def other_ranks(start_ranks):
    with start_ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def resumed(trained, names, folder, other_ranks):
    return other_ranks.run(resume, names, folder, timeout=_SECONDS * len(names))


@pytest.fixture(scope="module")
def resumed_by_one(start_ranks, trained, names, folder):
    names = [name for name in names if name in WHOLE]
    with start_ranks(1) as one:
        return one.run(resume, names, folder, timeout=_SECONDS * len(names))[0]


@pytest.fixture(scope="module")
def trained_by_one(names, tmp_path_factory):
    """Predictions of this process, and the folder where it saved."""
    folder = str(tmp_path_factory.mktemp("saved_by_one"))
    names = [name for name in names if name in WHOLE]
    return saving_cases.run_all(saving_cases.train, names, folder), folder


@pytest.fixture(scope="module")
def resumed_of_one(trained_by_one, other_ranks):
    results, folder = trained_by_one
    return other_ranks.run(resume, list(results), folder, timeout=_SECONDS * len(results))


@pytest.mark.parametrize("name", by_day(NAMES, BY_DAY))
def test_a_model_goes_on_in_other_ranks(name, trained, resumed):
    # Given a model that two ranks trained, saved and trained further
    for of_rank, further in zip(trained, resumed):
        expected, found = _results(of_rank[name], further[name])
        # When new processes load it, predict and train it further
        # Then what they predict is the same to the bit, both times
        assert np.ptp(expected[0]) > 0 and (expected[0] != expected[1]).any()
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", by_day(WHOLE, BY_DAY))
def test_a_model_of_two_ranks_goes_on_in_one_process(name, trained, resumed_by_one):
    # Given the same
    expected, found = _results(trained[0][name], resumed_by_one[name])
    # When one process loads it
    # Then it predicts the same to the bit, and trains on as far as sums of another order go
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", by_day(WHOLE, BY_DAY))
def test_a_model_of_one_process_goes_on_in_two_ranks(name, trained_by_one, resumed_of_one):
    # Given a model that one process trained, saved and trained further
    for of_rank in resumed_of_one:
        expected, found = _results(trained_by_one[0][name], of_rank[name])
        # When two ranks load it
        # Then they predict the same to the bit, and train on as far as sums of another order go
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", SERVED)
def test_a_saved_model_of_one_rank_is_refused(form, two_ranks, tmp_path):
    # Given a model whose tables are spread over ranks
    # When each rank writes a SavedModel of it, which one process is to serve
    for rank, (error, written) in enumerate(two_ranks.run(refused, form, str(tmp_path))):
        # Then each error says to do it where tables are whole, and no file is left
        assert f"{form.lower()}_3_" in error and "expected no SavedModel" in error, error
        assert "over 2 ranks" in error and "ge.exchange.unsharded()" in error
        assert not written, rank


def _results(*of_processes):
    for results in of_processes:
        assert not isinstance(results, str), results
    return of_processes
