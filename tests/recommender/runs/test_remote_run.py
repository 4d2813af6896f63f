"""Runs whose data, checkpoints, export and predictions lie on an object store."""

import io

import pyarrow.parquet as pq
import pytest
from support.cases import config_cases as cases

import group_embedding as ge
from group_embedding.files import remote_files
from group_embedding.models import MODELS
from group_embedding.recommender.config import read_config
from group_embedding.recommender.runs import train
from group_embedding.recommender.runs.command_line import main
from group_embedding.recommender.runs.run import Run

pytest.importorskip("fsspec")


@pytest.mark.slow
def test_a_run_goes_on_on_another_machine(s3_folder, tmp_path, monkeypatch):
    # Given data at a URL, and a config whose run is kept there
    url = s3_folder
    for name, num_rows in (("train", 600), ("validation", 200)):
        path = cases.write_clicks(tmp_path / f"{name}.parquet", num_rows)
        remote_files.upload(str(path), f"{url}/data/{name}.parquet")
    step = {"step": "Standardize", "inputs": "age"}
    values = cases.config_of(
        tmp_path,
        data={
            "train": f"{url}/data/train.parquet",
            "validation": f"{url}/data/validation.parquet",
            "preprocessing": [step],
        },
        training={"epochs": 1},
        checkpoints={"folder": f"{url}/run"},
        export={"folder": f"{url}/model"},
        predict={"output": f"{url}/predictions.parquet"},
    )
    path = str(cases.write_config(tmp_path, values, "clicks.json"))

    # When one machine trains an epoch, and another one goes on, exports and predicts
    for machine in ("a", "b"):
        (tmp_path / machine).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    train(read_config(path, (), tuple(MODELS)), MODELS)
    monkeypatch.chdir(tmp_path / "b")
    longer = read_config(path, ("training.epochs=2",), tuple(MODELS))
    run = Run(longer, MODELS)
    assert run.checkpoints.restore()
    begun = run.checkpoints.state.step
    result = train(longer, MODELS)
    main(["export", path, "training.epochs=2"])
    main(["predict", path, "training.epochs=2"])

    # Then it began where the other ended, with its preprocessing
    assert begun == 5 and result["steps"] == 10
    pipelines = [(tmp_path / m / "runs/clicks/pipeline/pipeline.json") for m in ("a", "b")]
    assert pipelines[0].read_text() == pipelines[1].read_text()
    assert "result.json" in remote_files.list_folder(f"{url}/run")

    # And what it exported and predicted is at its URL
    with remote_files.open_file(f"{url}/predictions.parquet") as file:
        assert len(pq.read_table(io.BytesIO(file.read()))) == 200
    with ge.serving.local_model(f"{url}/model", progress=False) as folder:
        assert folder.endswith("/model")
    assert not (tmp_path / "b" / "s3:").exists()
