"""A training that is killed goes on to the result of one that was not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.cases import config_cases as cases

from group_embedding.models import MODELS
from group_embedding.recommender.config import read_config
from group_embedding.recommender.runs import train

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 300


def start(path, *overrides):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-m", "group_embedding", "train", str(path), *overrides]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def end(process):
    try:
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output


def variables_of(folder):
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder / "checkpoints")))
    return {
        name: checkpoint.get_tensor(name)
        for name in checkpoint.get_variable_to_shape_map()
        if name.startswith(("network", "optimizer")) and not name.endswith("ROWS")
    }


@pytest.mark.slow
def test_kill_minus_9(tmp_path):
    # Given a config that saves every 3 steps, evaluates every 10, and a run of it
    cases.write_clicks(tmp_path / "train.parquet", 3000, seed=1)
    cases.write_clicks(tmp_path / "validation.parquet", 500, seed=2)
    values = cases.config_of(
        tmp_path, training={"epochs": 3, "evaluate_every": 10}, logging={"every": 1}
    )
    values["checkpoints"]["every"] = 3
    path = cases.write_config(tmp_path, values)
    whole, killed = (f"checkpoints.folder={tmp_path / name}" for name in ("whole", "killed"))
    train(read_config(path, [whole], tuple(MODELS)), MODELS)

    # When another one is killed in the middle of an epoch, and started again
    process = start(path, killed)
    deadline = time.monotonic() + SECONDS
    for line in process.stdout:
        if line.startswith("step 31/") or time.monotonic() > deadline:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL and not (tmp_path / "killed/result.json").exists()
    output = end(start(path, killed))

    # Then it went on, and its result and all its variables are the same
    assert "goes on behind step 30" in output or "goes on behind step 33" in output
    results = [json.loads((tmp_path / n / "result.json").read_text()) for n in ("whole", "killed")]
    assert results[0] == results[1]
    expected, got = variables_of(tmp_path / "whole"), variables_of(tmp_path / "killed")
    assert len(expected) > 10 and list(expected) == list(got)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, name)
