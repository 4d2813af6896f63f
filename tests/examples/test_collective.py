"""The examples of several ranks, as one process and on two ranks."""

import sys
from pathlib import Path

import pytest
import tensorflow as tf
from support.session.tiers import by_day

HOROVODRUN = [Path(sys.executable).with_name("horovodrun"), "-np", "2"]
ARGUMENTS = "--steps", 40, "--batch-size", 128
SCRIPTS = {
    "estimator_collective.py": "collective",
    "keras_collective.py": "Keras collective",
}


@pytest.mark.parametrize("script", by_day(SCRIPTS, (), nightly=SCRIPTS))
def test_two_ranks_train_the_model_of_one_process(run_example, movielens_folder, tmp_path, script):
    pytest.importorskip("horovod.tensorflow", reason="Horovod is not installed")
    if script.startswith("estimator") and not hasattr(tf, "estimator"):
        pytest.skip("this TensorFlow has no Estimator; 2.15 is the last")
    results = {}
    for num_ranks, launcher in {1: (), 2: HOROVODRUN}.items():
        ran = run_example(script, "--data", movielens_folder, *ARGUMENTS, launcher=launcher)
        results[num_ranks] = ran.results[SCRIPTS[script]]
        assert ran.output.count("step     40/40") == 1  # the first rank alone tells
        ran.folder.rename(tmp_path / f"by_{num_ranks}")

    one, two = results[1], results[2]
    assert (one["num_ranks"], two["num_ranks"]) == (1, 2)
    assert two["auc"] == pytest.approx(one["auc"], abs=0.002)
    assert two["log_loss"] == pytest.approx(one["log_loss"], abs=0.002)
    # The saved model, asked by one process, has the rows of both ranks.
    for (label, probability), (same, expected) in zip(two["answers"], one["answers"]):
        assert label == same
        assert probability == pytest.approx(expected, abs=0.01)
