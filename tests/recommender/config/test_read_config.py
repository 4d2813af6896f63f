"""Reading config files: defaults, overrides, and errors that name key, value and choices."""

import json
from pathlib import Path

import pytest
from support.cases import config_cases as cases
from support.cases import hugectr_files

import group_embedding as ge
from group_embedding.recommender.config import ConfigError, json_schema, read_config
from group_embedding.recommender.config.check import complete

ROOT = Path(__file__).resolve().parents[3]
NAMES = tuple(ge.models.MODELS)


def read(folder, values, *overrides):
    return read_config(cases.write_config(folder, values), overrides, NAMES)


def test_missing_keys_have_defaults(tmp_path):
    # Given a config of few keys
    config = read(tmp_path, {"model": {"name": "dlrm"}, "schema": "schema.yaml"})

    # Then the others have their defaults, and paths are relative to the file
    assert config["data"]["batch_size"] == 1024
    assert config["optimizer"]["schedule"]["decay"] == "none"
    assert config["training"]["early_stopping"] == {"patience": None, "min_delta": 0.0}
    assert config.locate("a.parquet") == str(tmp_path / "a.parquet")
    assert config.locate("gs://bucket/a") == "gs://bucket/a"
    assert config.folder == Path("runs/config")


def test_yaml_is_read_as_json_is(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("model: {name: dlrm, top: [8, 4]}\nschema: s.yaml\ndata: {train: [a, b]}\n")

    config = read_config(path, ["data.train=c"], NAMES)

    assert config["model"] == {"name": "dlrm", "top": [8, 4]}
    assert config.files("validation", "train") == [str(tmp_path / "c")]


def test_overrides_change_keys(tmp_path):
    # Given overrides of keys that are there, of others, and of inner ones
    config = read(
        tmp_path,
        cases.config_of(tmp_path),
        *("model.dim=32", "optimizer.schedule.decay=cosine", "data.test=[x, y]", "ranks.number=2"),
    )

    # Then they have these values, of YAML's types
    assert config["model"]["dim"] == 32 and config["model"]["bottom"] == [8]
    assert config["optimizer"]["schedule"]["decay"] == "cosine"
    assert config["data"]["test"] == ["x", "y"]
    assert config["ranks"]["number"] == 2


@pytest.mark.parametrize(
    "override, message",
    [
        (
            "modle.dim=3",
            "modle: expected one of the keys data, .*, got 'modle'; did you mean 'model'",
        ),
        ("data.batchsize=3", r"data\.batchsize: .* did you mean 'batch_size'"),
        ("data.batch_size=0", r"data\.batch_size: expected at least 1, got 0"),
        ("data.batch_size=many", r"data\.batch_size: expected an integer, got 'many'"),
        ("data.format=parket", "expected one of parquet, .*, got 'parket'; did you mean 'parquet'"),
        ("model.name=dlmr", "model.name: expected one of .*; did you mean 'dlrm'"),
        ("optimizer.name=adagard", "got 'adagard'; did you mean 'adagrad'"),
        ("optimizer.learning_rate=1e-3", "expected a number, got '1e-3'; write it as 0.001"),
        ("optimizer.learning_rate=1e-9", "got '1e-9'; write it as 1.0e-09"),
        ("optimizer.learning_rate=0", "expected more than 0, got 0"),
        ("optimizer.learning_rate=.nan", "expected a number, got nan"),
        ("optimizer.schedule.decay=linaer", r"schedule\.decay: .* did you mean 'linear'"),
        ("training.early_stopping.patience=1.5", "expected an integer or null, got 1.5"),
        ("training.compiled=1", "training.compiled: expected a boolean, got 1"),
        ("data.train=[]", "data.train: expected at least 1 items, got none"),
        ("data.train=[3]", r"data\.train\[0\]: expected a string, got 3"),
        ("data.preprocessing=[{step: Lgo}]", r"preprocessing\[0\]\.step: .* did you mean 'Log'"),
        ("data.preprocessing=[{inputs: a}]", r"preprocessing\[0\]\.step: expected this key"),
        ("schema=null", "schema: expected the schema of the data, got none"),
        ("ranks.number=3", "data.batch_size: expected a multiple of ranks.number, 3, got 128"),
        ("loss.name=mean_squared_error", "training.metric: expected loss, as loss.name is"),
        ("tune.parameters={model.dim: 8}", r"tune\.parameters\.model\.dim: expected a list"),
        ("tune.parameters={model.dim: {low: 1, high: 2}}", "expected a list of values for a grid"),
        ("model.dim.x=3", "expected keys in 'dim', got 4"),
        ("model.dim", "expected key.path=value, as model.dim=32"),
        ("model.dim=[", "behind '=' expected YAML"),
    ],
)
def test_errors_name_the_key(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, cases.config_of(tmp_path), override)


def test_files_that_are_no_config_are_refused(tmp_path):
    for name, text, message in (
        ("a.json", "{", "expected JSON"),
        ("a.yaml", "a: [", "expected YAML"),
        ("b.yaml", "- a", "expected keys and values"),
        ("c.yaml", "data: {}", "model: expected this key"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_config(tmp_path / name, (), NAMES)
    with pytest.raises(ConfigError, match="none.yaml: expected a config file, No such file"):
        read_config(tmp_path / "none.yaml", (), NAMES)


def test_a_json_schema_says_the_same():
    # Given the JSON Schema and another checker of JSON Schemas
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema((*NAMES, "hugectr"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    # When values are checked by both, Then both take or refuse them
    for values in (
        {"model": {"name": "dlrm", "anything": 3}},
        {"model": {"name": "dlmr"}},
        {"model": {}},
        {},
        {"model": {"name": "dlrm"}, "data": {"train": ["a"], "batch_size": 5}},
        {"model": {"name": "dlrm"}, "data": {"batch_size": 0}},
        {"model": {"name": "dlrm"}, "data": {"shuffle": 1}},
        {"model": {"name": "dlrm"}, "data": {"preprocessing": [{"step": "Log", "inputs": "a"}]}},
        {"model": {"name": "dlrm"}, "data": {"preprocessing": ["Log"]}},
        {"model": {"name": "dlrm"}, "optimizer": {"learning_rate": 0}},
        {"model": {"name": "dlrm"}, "optimizer": {"learning_rate": "1e-3"}},
        {"model": {"name": "dlrm"}, "training": {"steps": None, "compiled": True}},
        {"model": {"name": "dlrm"}, "training": {"compiled": 1}},
        {"model": {"name": "dlrm"}, "data": {"train": []}},
        {"model": {"name": "dlrm"}, "tune": {"parameters": {"a": [1]}}},
    ):
        try:
            complete(schema, values, "file")
            is_taken = True
        except ConfigError:
            is_taken = False
        assert validator.is_valid(values) == is_taken, values


def test_the_documented_json_schema_is_that_of_the_code():
    documented = json.loads((ROOT / "docs/reference/config_schema.json").read_text())

    assert documented == json_schema((*NAMES, "hugectr"))


def test_a_hugectr_file_is_a_config(tmp_path):
    # Given a HugeCTR file with a solver, an optimizer with a schedule, and files
    (tmp_path / "train").mkdir()
    (tmp_path / "train/_file_list.txt").write_text("2\ntrain/a.parquet\nb.parquet\n")
    (tmp_path / "train/a.parquet").touch()
    hparam = {
        **{"learning_rate": 24.0, "atomic_update": True, "warmup_steps": 10},
        **{"decay_start": 20, "decay_steps": 30, "decay_power": 2},
    }
    path = hugectr_files.write(
        tmp_path / "dcn.json",
        hugectr_files.dcn(),
        solver={"batchsize": 64, "max_iter": 40, "display": 4, "eval_interval": 20, "gpu": [0]},
        optimizer={"type": "SGD", "update_type": "Local", "sgd_hparam": hparam},
    )

    # When it is read
    config = read_config(path, ["data.shuffle_rows=7"], NAMES)

    # Then its keys are those of a config, and the rest is named
    assert config["data"]["batch_size"] == 64 and config["data"]["shuffle_rows"] == 7
    assert config["training"]["steps"] == 40 and config["training"]["evaluate_every"] == 20
    assert config["optimizer"]["name"] == "sgd" and config["optimizer"]["learning_rate"] == 24.0
    assert config["optimizer"]["schedule"]["decay"] == "polynomial"
    assert config["optimizer"]["schedule"]["decay_steps"] == 30
    assert config.files("train") == [
        str(tmp_path / "train/a.parquet"),
        str(tmp_path / "train/b.parquet"),
    ]
    assert (
        "solver.gpu" in config.left_out and "optimizer.sgd_hparam.atomic_update" in config.left_out
    )


def test_what_a_hugectr_file_cannot_say_here_is_refused(tmp_path):
    layers = hugectr_files.dcn()
    layers[0]["format"] = "Norm"
    path = hugectr_files.write(tmp_path / "a.json", layers)
    with pytest.raises(ConfigError, match="expected format Parquet or Raw, got 'Norm'"):
        read_config(path, (), NAMES)

    path = hugectr_files.write(tmp_path / "b.json", hugectr_files.dcn(), optimizer={"type": "LARS"})
    with pytest.raises(ConfigError, match="expected type Adam, .*, got 'LARS'"):
        read_config(path, (), NAMES)
