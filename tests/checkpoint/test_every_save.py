"""Every form of model, saved in every way, goes on in another process as if never interrupted."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.programs import saving_cases
from support.session.tiers import by_day, values_of_run

PROGRAM = Path(saving_cases.__file__)


# Each way to save, with several tables.
BY_DAY = ["EagerChanges_3", "GraphChanges_3", "Sok_3", "FunctionalExport_3", "Subclassed_3"]
NIGHTLY = [name for name in saving_cases.NAMES if not name.endswith("_3")]


@pytest.fixture(scope="module")
def processes(request, tmp_path_factory):
    """Predictions of the cases that are tested: where they were trained and saved, and where they
    were loaded."""
    names = values_of_run(request, "name")
    folder = tmp_path_factory.mktemp("saved")
    for part in ("train", "resume"):
        subprocess.run([sys.executable, PROGRAM, part, folder, *names], check=True)
    return [pickle.loads((folder / f"{part}.pickle").read_bytes()) for part in ("train", "resume")]


@pytest.mark.parametrize("name", by_day(saving_cases.NAMES, BY_DAY, NIGHTLY))
def test_a_model_goes_on_in_another_process(name, processes):
    # Given a model that was trained, saved and trained further
    trained, resumed = (results[name] for results in processes)
    assert not isinstance(trained, str), trained
    # When another process loads it, predicts and trains it further
    assert not isinstance(resumed, str), resumed
    # Then it predicts the same to the bit, and again after more steps, in which a stock matrix
    # product may round by where its operands lie in memory
    assert np.ptp(trained[0]) > 0 and abs(trained[0] - trained[1]).max() > 1e-3
    np.testing.assert_array_equal(resumed[0], trained[0])
    if resumed[1] is not None:
        np.testing.assert_allclose(resumed[1], trained[1], rtol=1e-5, atol=1e-6)
