"""From files to a served model, for each data set."""

import json
import sys

import fetch_files
import numpy as np
import pytest
import tensorflow as tf
import train_from_files
from support.session.tiers import by_day

from from_files import generated
from from_files.data_sets import DATA_SETS
from from_files.serving import request

# The least AUC of 60 steps on 4,000 rows: the generators' labels can be learned, none by chance.
LEAST_AUC = {"criteo": 0.6, "shop": 0.7, "news": 0.65}


@pytest.mark.parametrize("name", by_day(DATA_SETS, (), nightly=["criteo", "news"]))
def test_from_files_to_a_served_model(name, tmp_path, monkeypatch, capsys):
    # Given small generated files, when the example trains on them and exports the model:
    monkeypatch.setattr(fetch_files, "GENERATED_ROWS", {"train": 4000, "test": 1500})
    command = ["train_from_files.py", name, "--steps", "60", "--batch-size", "256"]
    command += ["--folder", str(tmp_path), "--plot", str(tmp_path / "curves.png")]
    monkeypatch.setattr(sys, "argv", command)
    train_from_files.main()
    # Then each label is predicted better than by chance, as the output says,
    results = json.loads((tmp_path / "results.json").read_text())
    printed = capsys.readouterr().out
    for label in DATA_SETS[name].labels:
        assert results[label]["auc"] > LEAST_AUC[name]
        assert f"{label}: AUC {results[label]['auc']:.4f}" in printed
        assert results["test_auc"][label][-1] == results[label]["auc"]
    assert results["loss"][-1] < results["loss"][0] and len(results["loss"]) == 10
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    # and the SavedModel answers one row, which the test file has, with a probability.
    serve = tf.saved_model.load(str(tmp_path / "saved_model")).signatures["serving_default"]
    test = DATA_SETS[name].reader(str(tmp_path / f"test.{DATA_SETS[name].ending}"), 1)
    features, _ = next(iter(test))
    for probability in serve(**request(features)).values():
        assert probability.shape == [1] and 0 < float(probability[0]) < 1


@pytest.mark.parametrize("name", DATA_SETS)
def test_generated_files_depend_on_their_seed_alone(name, tmp_path):
    for file, seed in (("a", 1), ("b", 1), ("c", 2)):
        DATA_SETS[name].write(tmp_path / file, 200, seed)
    once, again, other = ((tmp_path / file).read_bytes() for file in "abc")
    assert once == again != other


def test_criteo_lines(tmp_path):
    # Given a generated file, then it has Criteo's fields, of which a few are empty.
    generated.write_criteo(tmp_path / "lines.tsv", 300, seed=4)
    rows = [line.split("\t") for line in (tmp_path / "lines.tsv").read_text().splitlines()]
    assert {len(row) for row in rows} == {40}
    assert {row[0] for row in rows} == {"0", "1"}
    empty = np.mean([field == "" for row in rows for field in row[1:]])
    assert 0.03 < empty < 0.07


def test_files_come_in_pairs(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_from_files.py", "criteo", "--train", "x.tsv"])
    with pytest.raises(SystemExit):
        train_from_files.arguments()
