"""The Keras form of the main job, on Keras 2 and on Keras 3."""

import pytest

SCRIPT = "train_keras.py"


@pytest.mark.slow
def test_movielens(run_example, movielens_folder):
    ran = run_example(SCRIPT, "--data", movielens_folder, "--steps", 60, "--batch-size", 128)
    (result,) = ran.results.values()
    assert result["auc"] > 0.7
    assert result["log_loss"] < 0.69
    assert result["examples_per_second"] > 0
    assert all(0 < probability < 1 for _, probability in result["answers"])
    assert "keras  step     60/60  loss" in ran.output
    assert (ran.folder / "dlrm.keras").exists()


@pytest.mark.soak
def test_criteo_file(run_example, criteo_file):
    ran = run_example(SCRIPT, "--data", criteo_file, "--steps", 12, "--batch-size", 256)
    (result,) = ran.results.values()
    assert 0 < result["log_loss"] < 1
