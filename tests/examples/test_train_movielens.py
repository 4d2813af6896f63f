"""The main job, run as a user runs it."""

import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from dlrm import fetch, movielens

SCRIPT = "train_movielens.py"
TOLERANCE = 0.002  # between the AUCs of two models
KEYED_TOLERANCE = 0.01  # of which one starts from other rows; they have seen little
KEYED_TOLERANCE_OF_AN_EPOCH = 0.003

pytestmark = pytest.mark.skipif(
    not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimator; 2.15 is the last"
)


@pytest.mark.soak
def test_grouped_equals_stock(run_example, movielens_folder):
    # Given MovieLens in small, when all models train on it:
    ran = run_example(SCRIPT, "--data", movielens_folder, "--steps", 60, "--batch-size", 128)
    stock, grouped, wrapped = (ran.results[way] for way in ("stock", "grouped", "wrapped"))
    # Then they agree, all have learned something, and each graph is smaller than the one before.
    for result in (grouped, wrapped):
        assert stock["auc"] == pytest.approx(result["auc"], abs=TOLERANCE)
        assert stock["log_loss"] == pytest.approx(result["log_loss"], abs=TOLERANCE)
        assert result["examples_per_second"] > 0
    assert stock["auc"] > 0.7
    assert stock["steps"] == grouped["steps"] == wrapped["steps"] == 60
    assert wrapped["ops_in_graph"] < grouped["ops_in_graph"] < stock["ops_in_graph"]
    # And with tables of keys, whose rows start as other draws, the model is as good.
    keyed = ran.results["keyed"]
    assert stock["auc"] == pytest.approx(keyed["auc"], abs=KEYED_TOLERANCE)
    assert keyed["ops_in_graph"] < grouped["ops_in_graph"]
    check_printed(ran)
    check_checkpoints(ran.folder, ran.results, step=60)
    for result in (stock, grouped, wrapped, keyed):
        check_saved_model(result, movielens_folder)


def check_printed(ran):
    """A progress line for each model, the answers of the SavedModel, the table."""
    assert "stock  step     60/60  loss" in ran.output
    assert "grouped  step     60/60  loss" in ran.output
    assert "loaded back, answers" in ran.output
    header, *rows = ran.output.rstrip().splitlines()[-7:-2]
    assert header.split("  ")[-4:] == ["AUC", "log loss", "examples/s", "ops in the graph"]
    assert [row.split()[0] for row in rows] == ["stock", "grouped", "wrapped", "keyed"]


def check_checkpoints(folder, models, step):
    """Each model writes one, with variables of the same names and shapes, and summaries."""
    variables = {}
    for model in models:
        latest = tf.train.latest_checkpoint(folder / model)
        assert latest.endswith(f"model.ckpt-{step}")
        variables[model] = tf.train.list_variables(latest)
        assert list((folder / model).glob("events.out.tfevents.*"))
    keyed = {name for name, _ in variables.pop("keyed", [])}
    assert all(variables[model] == variables["stock"] for model in variables)
    # In the place of a table of keys, and of its slot, is a manifest that names its rows' file.
    rows = {name for name in keyed if name.endswith("embedding_weights-rows")}
    assert len(rows) in (0, len(movielens.SCHEMA.open_ended))
    if rows:
        tables = tuple(name.removesuffix("-rows") for name in rows)
        stock = {name for name, _ in variables["stock"]}
        assert keyed - rows >= {name for name in stock if not name.startswith(tables)}


def check_saved_model(result, movielens_folder):
    """Loaded back, it gives what the run recorded, and takes any number of examples."""
    import group_embedding  # noqa: F401  (so that TensorFlow knows the ops)

    _, test = movielens.load_movielens(movielens_folder).split(0.8)
    serve = tf.saved_model.load(result["saved_model"]).signatures["serving_default"]
    examples = test.sample(5)
    answer = serve(**{k: tf.constant(v) for k, v in examples.features.items()})["probability"]
    labels, recorded = zip(*result["answers"])
    np.testing.assert_allclose(answer, recorded, atol=1e-6)
    assert list(labels) == examples.labels.tolist()
    one = serve(**{k: tf.constant(v[:1]) for k, v in examples.features.items()})["probability"]
    np.testing.assert_allclose(one, recorded[:1], atol=1e-6)


@pytest.mark.soak
def test_criteo_file(run_example, criteo_file):
    ran = run_example(SCRIPT, "--data", criteo_file, "--steps", 12, "--batch-size", 256)
    stock, grouped = ran.results["stock"], ran.results["grouped"]
    assert stock["auc"] == pytest.approx(grouped["auc"], abs=TOLERANCE)
    assert stock["log_loss"] == pytest.approx(grouped["log_loss"], abs=TOLERANCE)
    assert 0 < stock["log_loss"] < 1


@pytest.mark.soak
def test_stock_needs_no_group_embedding(run_example, movielens_folder, tmp_path):
    # Given a group_embedding that cannot be imported, when only the stock model is asked for:
    (tmp_path / "group_embedding.py").write_text("raise ImportError('not built')\n")
    ran = run_example(
        SCRIPT, "--stock", "--data", movielens_folder, "--steps", 3, PYTHONPATH=str(tmp_path)
    )
    # Then that one is trained.
    assert list(ran.results) == ["stock"]
    assert ran.results["stock"]["steps"] == 3


@pytest.mark.soak
def test_movielens_100k(run_example):
    # Given the real data, when both models see a whole epoch of it:
    try:
        fetch.fetch_movielens()
    except RuntimeError as error:
        pytest.skip(f"MovieLens-100K cannot be fetched here: {error}")
    ran = run_example(SCRIPT)
    # Then they agree, and are about as good as knowing each movie's mean rating (0.697).
    stock, grouped, keyed = (ran.results[way] for way in ("stock", "grouped", "keyed"))
    assert stock["auc"] == pytest.approx(grouped["auc"], abs=TOLERANCE)
    assert stock["auc"] == pytest.approx(keyed["auc"], abs=KEYED_TOLERANCE_OF_AN_EPOCH)
    assert stock["auc"] > 0.68
    assert stock["steps"] == 80_000 // 512


@pytest.mark.soak
def test_two_ranks_equal_one_process(run_example, movielens_folder):
    # Given Horovod, when two ranks train the grouped model, and the first of them the stock one:
    pytest.importorskip("horovod.tensorflow", reason="Horovod is not installed")
    horovodrun = [Path(sys.executable).with_name("horovodrun"), "-np", "2"]
    ran = run_example(
        SCRIPT,
        *("--data", movielens_folder, "--steps", 40, "--batch-size", 128),
        launcher=horovodrun,
    )
    stock, grouped = ran.results["stock"], ran.results["grouped"]
    # Then the two agree, and one logical checkpoint is there, written by the two.
    assert (stock["num_ranks"], grouped["num_ranks"]) == (1, 2)
    assert stock["auc"] == pytest.approx(grouped["auc"], abs=TOLERANCE)
    assert stock["log_loss"] == pytest.approx(grouped["log_loss"], abs=TOLERANCE)
    check_checkpoints(ran.folder, ran.results, step=40)
    check_saved_model(grouped, movielens_folder)
    # Only the first rank has written summaries and the progress line.
    for folder in ("grouped", "grouped/eval"):
        assert len(list((ran.folder / folder).glob("events.out.tfevents.*"))) == 1
    assert ran.output.count("grouped  step     40/40") == 1
