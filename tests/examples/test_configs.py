"""The configs of examples/configs: from files to an exported model that answers."""

import json
import re
from pathlib import Path

import fetch_files
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from support.session.tiers import by_day

from from_files.data_sets import DATA_SETS
from group_embedding.recommender.runs.command_line import main
from group_embedding.serving import InferenceSession

CONFIGS = Path(fetch_files.__file__).parent / "configs"
# The least AUC of two epochs of 6,000 generated rows; none of the labels is learned by chance.
LEAST_AUC = {"criteo": 0.6, "shop": 0.65, "news": 0.65}


@pytest.mark.parametrize("name", by_day(DATA_SETS, (), nightly=["criteo", "shop"]))
def test_from_a_config_to_a_served_model(name, tmp_path, monkeypatch, capsys):
    # Given generated files, where the config looks for those that were fetched
    monkeypatch.chdir(tmp_path)
    files = fetch_files.generate(name, tmp_path / "data" / name, {"train": 6000, "test": 1500})
    (tmp_path / "examples/configs").mkdir(parents=True)
    config = tmp_path / "examples/configs" / f"{name}.yaml"
    config.write_text((CONFIGS / f"{name}.yaml").read_text())

    # When the commands of the page run, with fewer steps
    for command in ("train", "evaluate", "predict", "export"):
        assert main([command, str(config), "training.epochs=2", "data.batch_size=128"]) == 0

    # Then each label is predicted better than by chance
    folder = tmp_path / "runs" / name
    result = json.loads((folder / "evaluation.json").read_text())
    labels = DATA_SETS[name].labels
    names = ["auc"] if len(labels) == 1 else [f"auc/{label}" for label in labels]
    assert min(result[one] for one in names) > LEAST_AUC[name]
    assert re.search(r"auc 0\.\d{4}", capsys.readouterr().out)

    # And the SavedModel gives what predict gave, for raw columns of the files
    predicted = pq.read_table(folder / "predictions.parquet").slice(0, 20)
    features, _ = next(iter(DATA_SETS[name].reader(str(files[1]), 20)))
    with InferenceSession(folder / "export") as session:
        inputs = session.signatures()["serving_default"]["inputs"]
        answers = session.predict({key: _as(features[key], inputs[key]["dtype"]) for key in inputs})
    for label in labels:
        expected = predicted[label].to_numpy()
        np.testing.assert_allclose(np.ravel(answers[label]), expected, rtol=1e-4, atol=1e-5)


def _as(values, dtype):
    """Values as the signature takes them: lists are padded with -1."""
    dense = values.to_tensor(-1) if hasattr(values, "to_tensor") else values
    return np.asarray(dense).astype(tf.as_dtype(dtype).as_numpy_dtype)
