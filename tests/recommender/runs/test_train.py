"""Training by a config in one process: results, evaluations, the best checkpoint, going on."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from support.cases import config_cases as cases
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding.models import MODELS
from group_embedding.recommender.config import ConfigError, read_config
from group_embedding.recommender.runs import describe_run, train
from group_embedding.recommender.runs.command_line import main
from group_embedding.recommender.runs.run import Run


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clicks")
    cases.write_clicks(folder / "train.parquet", 1500, seed=1)
    cases.write_clicks(folder / "validation.parquet", 600, seed=2)
    return folder


def config_in(files, folder, *overrides, **sections):
    values = cases.config_of(folder, **sections)
    path = cases.write_config(files, values, f"{folder.name}.json")
    return read_config(path, overrides, tuple(MODELS))


def trained_variables(config):
    run = Run(config, MODELS)
    run.checkpoints.restore()
    return [tf.convert_to_tensor(v).numpy() for v in run.model.network.trainable_variables]


def test_trains_evaluates_predicts_and_exports(files, tmp_path, capsys):
    # Given a config with preprocessing, a schedule and summaries
    values = cases.config_of(
        tmp_path,
        data={
            "preprocessing": [
                {"step": "Standardize", "inputs": "age"},
                {"step": "Cross", "inputs": ["user", "item"], "size": 50, "output": "pair"},
            ]
        },
        schema={
            "features": [
                *cases.SCHEMA["features"],
                {"name": "pair", "kind": "categorical", "dtype": "int64"},
            ]
        },
        optimizer={"schedule": {"decay": "cosine", "warmup_steps": 5}},
        training={"epochs": 4},
        logging={"tensorboard": True},
    )
    path = str(cases.write_config(files, values, "whole.json"))

    # When it is trained, evaluated, and predicts and is exported
    for command in ("train", "evaluate", "predict", "export"):
        assert main([command, path]) == 0
    folder = tmp_path / "run"
    shown = capsys.readouterr().out

    # Then the progress, the metrics and the files are there
    result = json.loads((folder / "result.json").read_text())
    assert result["steps"] == 48 and result["ended"] == "steps"
    assert result["best"]["auc"] > 0.65
    assert "step 48/48  loss 0." in shown and "examples/s" in shown and "the best" in shown
    assert list((folder / "tensorboard").iterdir())

    # And the evaluation is that of the best checkpoint, and of the predictions
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert evaluation["step"] == result["best"]["step"]
    np.testing.assert_allclose(evaluation["auc"], result["best"]["auc"], atol=1e-6)
    rows = pq.read_table(files / "validation.parquet")
    predicted = pq.read_table(folder / "predictions.parquet")["click"].to_numpy()
    labels = rows["click"].to_numpy()
    pairs = predicted[labels == 1][:, None] - predicted[labels == 0][None]
    area = (pairs > 0).mean() + 0.5 * (pairs == 0).mean()
    np.testing.assert_allclose(evaluation["auc"], area, atol=1e-4)
    losses = -np.log(np.where(labels == 1, predicted, 1 - predicted))
    np.testing.assert_allclose(evaluation["loss"], losses.mean(), rtol=1e-4)

    # And the SavedModel gives the same predictions for columns of the file
    served = tf.saved_model.load(str(folder / "export")).signatures["serving_default"]
    some = rows.slice(0, 50)
    clicks = tf.ragged.constant(some["clicks"].to_pylist(), dtype=tf.int64)
    answers = served(
        user=tf.constant(some["user"].to_numpy()),
        item=tf.constant(some["item"].to_numpy()),
        clicks=clicks.to_tensor(-1),
        country=tf.constant(some["country"].to_pylist()),
        age=tf.constant(some["age"].to_numpy()),
    )
    np.testing.assert_allclose(answers["click"], predicted[:50], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_goes_on_to_the_same_variables(files, tmp_path):
    # Given a run of all steps, and one that ended in the middle of an epoch
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config_in(files, whole), MODELS)
    train(config_in(files, parts, "training.steps=7"), MODELS)

    # When the second goes on
    result = train(config_in(files, parts), MODELS)

    # Then its variables are those of the first, to the bit
    assert result["steps"] == 24
    for a, b in zip(
        trained_variables(config_in(files, whole)), trained_variables(config_in(files, parts))
    ):
        np.testing.assert_array_equal(a, b)


def test_early_stopping_keeps_the_best(files, tmp_path):
    # Given a learning rate of 0 but for the first steps, so that evaluations get no better
    config = config_in(
        *(files, tmp_path, "training.evaluate_every=2", "training.epochs=4"),
        optimizer={"schedule": {"decay": "linear", "decay_steps": 3}},
        training={"early_stopping": {"patience": 2}},
    )

    # When it is trained
    result = train(config, MODELS)

    # Then it ends two evaluations behind the best one, and stays so
    assert result["ended"] == "early stopping"
    assert result["steps"] == result["best"]["step"] + 4 < 48
    assert Run(config, MODELS).restore_best() == result["best"]["step"]
    assert train(config, MODELS)["steps"] == result["steps"]


def test_several_labels(files, tmp_path):
    # Given two labels, of which one is a copy, and an MMoE with a weight
    schema = {
        "features": [
            *cases.SCHEMA["features"][:5],
            *({"name": name, "kind": "label", "dtype": "float32"} for name in ("click", "buy")),
        ]
    }
    table = pq.read_table(files / "train.parquet")
    pq.write_table(table.append_column("buy", table["click"]), files / "two.parquet")
    config = config_in(
        *(files, tmp_path, "data.validation=two.parquet", "data.train=two.parquet"),
        schema=schema,
        model={"name": "mmoe", "tasks": ["click", "buy"]},
        loss={"weights": {"buy": 0.5}},
        training={"epochs": 1},
    )
    values = {**config.values, "model": {"name": "mmoe", "tasks": ["click", "buy"], "dim": 4}}
    config = read_config(cases.write_config(files, values, "two.json"), (), tuple(MODELS))

    # When it is trained
    result = train(config, MODELS)

    # Then both have an AUC, and the loss is weighted
    found = result["validation"]
    assert found["auc"] == pytest.approx((found["auc/click"] + found["auc/buy"]) / 2)
    model = Run(config, MODELS).model
    batch = next(model.batches(model.make_reader("train")))
    loss, logits = model.evaluate_outputs(batch)
    labels = model.labels_of(batch)
    single = {
        name: tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels[name], tf.float32), logits[name])
        )
        for name in ("click", "buy")
    }
    assert float(loss) == pytest.approx(float(single["click"] + 0.5 * single["buy"]), rel=1e-5)


@pytest.mark.parametrize(
    "precision", by_day(["mixed_bfloat16", "mixed_float16"], ["mixed_bfloat16"])
)
def test_compiled_and_in_16_bits(files, tmp_path, precision):
    config = config_in(
        *(files, tmp_path, f"precision={precision}", "data.drop_remainder=true"),
        training={"compiled": precision == "mixed_bfloat16", "epochs": 1},
    )

    result = train(config, MODELS)

    assert result["steps"] == 11 and result["best"]["auc"] > 0.55


def test_a_loop_of_ones_own(files, tmp_path):
    # Given the model and the optimizer of a config, and its reader
    values = cases.config_of(tmp_path, training={"epochs": 3})
    model, optimizer = ge.models.from_config(cases.write_config(files, values, "loop.json"))
    reader = model.make_reader("train")

    # When a loop trains, with a learning rate of its own
    losses = []
    for step, batch in enumerate(model.batches(reader)):
        model.learning_rate = 0.05 if step < 20 else 0.01
        losses.append(float(model.train_step(batch)))

    # Then the loss falls
    assert len(losses) == 36 and np.mean(losses[-5:]) < 0.9 * np.mean(losses[:3])
    assert float(optimizer.learning_rate) == pytest.approx(0.01)


def test_dry_run_shows_tables_and_placement(files, tmp_path, capsys):
    # Given a config of two ranks, with planned placements
    config = config_in(files, tmp_path, "ranks.number=2", "ranks.placement=auto")

    # When it is described
    text = describe_run(config, MODELS)

    # Then it has model, bytes and the plan, and nothing was made
    assert "model dlrm (DLRM)" in text and "2 slots of a table's size" in text
    assert "3 tables" in text and "rank 1" in text and "replicated" in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "override, message",
    [
        ("model.dimm=3", r"model\.dimm: expected one of the keys name, .*; did you mean 'dim'"),
        ("model.top=8", r"model: .*top"),
        ("optimizer.momentumm=0.9", r"optimizer\.momentumm: expected one of the keys name"),
        ("data.preprocessing=[{step: Log, input: age}]", r"\[0\]\.input: .* 'inputs'"),
        ("data.train=none.parquet", "none.parquet"),
        ("data.train=null", "data.train or"),
        ("schema={features: []}", "schema: expected a feature of kind label"),
        ("schema=none.yaml", "schema: .*No such file"),
    ],
)
def test_errors_before_training(files, tmp_path, override, message):
    with pytest.raises((ConfigError, OSError), match=message):
        train(config_in(files, tmp_path, override, "data.validation=null"), MODELS)


def test_a_run_of_another_model_is_refused(files, tmp_path):
    # Given a run
    train(config_in(files, tmp_path, "training.steps=1"), MODELS)

    # When another model, data order, or number of ranks would go on, Then an error names the key
    for override, message in (
        ("model.dim=8", "model.dim: expected 4, as the run in .* has, got 8"),
        ("data.shuffle_rows=9", "expected the state of a reader with shuffle_rows"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(config_in(files, tmp_path, override), MODELS)
    # And another learning rate may
    train(config_in(files, tmp_path, "optimizer.learning_rate=0.1", "training.steps=2"), MODELS)


def test_without_a_run_there_is_nothing_to_evaluate(files, tmp_path):
    path = str(cases.write_config(files, cases.config_of(tmp_path), "none.json"))

    with pytest.raises(SystemExit, match="expected a checkpoint of a run, got none; train first"):
        main(["evaluate", path])


def test_a_loss_that_is_not_finite_ends_training(files, tmp_path):
    # Given a file with a label that is no number
    table = pq.read_table(files / "train.parquet")
    labels = table["click"].to_numpy().astype(np.float32)
    labels[700] = np.nan
    pq.write_table(table.set_column(5, "click", [labels]), files / "nan.parquet")
    label = {"name": "click", "kind": "label", "dtype": "float32"}
    schema = {"features": [*cases.SCHEMA["features"][:-1], label]}
    config = config_in(
        *(files, tmp_path, "data.train=nan.parquet", "data.validation=null"), schema=schema
    )

    # When it is trained on, Then the step's window ends it
    with pytest.raises(FloatingPointError, match="expected a finite loss, got"):
        train(config, MODELS)


def test_a_bad_row_is_one_line(files, tmp_path):
    # Given a file with an id that its table does not have
    table = pq.read_table(files / "train.parquet")
    users = table["user"].to_numpy().copy()
    users[700] = 40
    bad = table.set_column(0, "user", [users])
    pq.write_table(bad, files / "bad.parquet")
    path = str(cases.write_config(files, cases.config_of(tmp_path), "bad.json"))

    # When it is trained on, Then the command ends with one line that says which
    with pytest.raises(SystemExit, match="table .*user.*: id 40 .*expected 0 <= id < 40"):
        main(["train", path, "data.train=bad.parquet"])


def test_a_models_own_loss(files, tmp_path):
    # Given two towers, which add a loss of their own in training
    values = cases.config_of(tmp_path, loss={"name": "model"}, training={"epochs": 1})
    values["model"] = {"name": "two_tower", "query": ["user"], "item": ["item"], "units": [8]}
    values["model"] |= {"dim": 8}
    config = read_config(cases.write_config(files, values, "towers.json"), (), tuple(MODELS))

    # When they are trained
    model = Run(config, MODELS).model
    losses = [float(model.train_step(batch)) for batch in model.batches(model.make_reader("train"))]

    # Then it is a softmax over the batch of 128, and falls
    assert losses[0] > 3 and losses[-2] < losses[0]
