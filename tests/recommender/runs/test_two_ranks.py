"""A config gives one AUC on one rank and on two."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.cases import config_cases as cases

from group_embedding.models import MODELS
from group_embedding.recommender.config import read_config
from group_embedding.recommender.runs import train
from group_embedding.recommender.runs.run import Run

ROOT = Path(__file__).resolve().parents[3]


def run(command, path, *overrides):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    ran = subprocess.run(
        [sys.executable, "-m", "group_embedding", command, str(path), *overrides],
        **{"env": environment, "capture_output": True, "text": True, "timeout": 300},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture
def path(tmp_path):
    """A config with a step of preprocessing that is fitted."""
    pytest.importorskip("horovod")
    cases.write_clicks(tmp_path / "train.parquet", 6000, seed=1)
    cases.write_clicks(tmp_path / "validation.parquet", 2001, seed=2)
    values = cases.config_of(
        tmp_path,
        data={"preprocessing": [{"step": "Standardize", "inputs": "age"}]},
        training={"epochs": 3},
    )
    return cases.write_config(tmp_path, values)


@pytest.mark.slow
def test_two_ranks_have_the_auc_of_one(tmp_path, path):
    # Given a config
    two = f"checkpoints.folder={tmp_path / 'two'}"

    # When it is trained on one rank, and on two that it launches
    expected = train(read_config(path, (), tuple(MODELS)), MODELS)
    run("train", path, two, "ranks.number=2")

    # Then both have one AUC, and the checkpoint of two is one for one
    got = json.loads((tmp_path / "two/result.json").read_text())
    assert got["steps"] == expected["steps"] == 141
    assert expected["best"]["auc"] > 0.75
    assert abs(got["best"]["auc"] - expected["best"]["auc"]) < 0.02
    alone = Run(read_config(path, [two], tuple(MODELS)), MODELS)
    alone.restore_best()
    assert abs(alone.evaluate("validation")["auc"] - got["best"]["auc"]) < 1e-4


@pytest.mark.soak
def test_two_ranks_go_on_and_predict(tmp_path, path):
    # Given a run of two ranks that ended in the middle of an epoch
    two = [f"checkpoints.folder={tmp_path / 'two'}", "ranks.number=2"]
    run("train", path, *two, "training.steps=60")

    # When it goes on, and predicts
    shown = run("train", path, *two)
    run("predict", path, *two)
    run("predict", path, two[0], f"predict.output={tmp_path / 'whole.parquet'}")

    # Then predictions are those of one process, in the order of the file
    assert "goes on behind step 60" in shown
    parts = [pq.read_table(tmp_path / f"two/predictions-0000{i}-of-00002.parquet") for i in (0, 1)]
    whole = pq.read_table(tmp_path / "whole.parquet")["click"].to_numpy()
    got = [value for part in parts for value in part["click"].to_pylist()]
    assert len(got) == 2001
    assert abs(whole - got).max() < 1e-5
