"""HugeCTR files are trained: on Parquet files with their list of columns, and on Raw files."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from support.cases import hugectr_files

from group_embedding.models import MODELS
from group_embedding.recommender.config import ConfigError, read_config
from group_embedding.recommender.runs import train

SOLVER = {"batchsize": 64, "max_iter": 40, "display": 20, "eval_interval": 20, "snapshot": 20}
ADAM = {
    "type": "Adam",
    "update_type": "Global",
    "adam_hparam": {"learning_rate": 0.05, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7},
}


def samples(num_rows, seed):
    """Labels that depend on the first slot; [rows], [rows, dense], [rows, slots]."""
    random = np.random.default_rng(seed)
    slots = np.stack([random.integers(0, size, num_rows) for size in hugectr_files.SIZES], 1)
    dense = random.integers(0, 9, [num_rows, hugectr_files.DENSE])
    return (slots[:, 0] % 2 ^ (random.random(num_rows) < 0.1)).astype(np.int32), dense, slots


def write_parquet(folder, num_rows, seed):
    labels, dense, slots = samples(num_rows, seed)
    folder.mkdir()
    columns = {"click": labels.astype(np.float32)}
    columns |= {f"number{i}": x.astype(np.float32) for i, x in enumerate(dense.T)}
    columns |= {f"category{i}": x for i, x in enumerate(slots.T)}
    pyarrow.parquet.write_table(pa.table(columns), folder / "rows.parquet")
    listed = {
        "labels": [{"col_name": "click", "index": 0}],
        "conts": [{"col_name": f"number{i}"} for i in range(hugectr_files.DENSE)],
        "cats": [{"col_name": f"category{i}"} for i in range(hugectr_files.NUM_SLOTS)],
    }
    (folder / "_metadata.json").write_text(json.dumps(listed))
    (folder / "_file_list.txt").write_text("1\nrows.parquet\n")


def config_of(folder, layers):
    path = hugectr_files.write(folder / "net.json", layers, solver=SOLVER, optimizer=ADAM)
    run = f"checkpoints.folder={folder / 'run'}"
    return read_config(path, [run, "logging.tensorboard=false"], tuple(MODELS))


def test_parquet(tmp_path):
    # Given a file, and Parquet files with columns of other names
    write_parquet(tmp_path / "train", 1000, 1)
    write_parquet(tmp_path / "val", 400, 2)
    config = config_of(tmp_path, hugectr_files.dcn())

    # When it is trained, for more steps than an epoch has
    result = train(config, MODELS)

    # Then it learns
    assert result["steps"] == 40 and result["best"]["auc"] > 0.8


def test_raw(tmp_path):
    # Given a file of format Raw
    for name, num_rows in (("train", 1000), ("val", 400)):
        labels, dense, slots = samples(num_rows, num_rows)
        rows = np.concatenate([labels[:, None], dense, slots], 1).astype(np.int32)
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    layers = hugectr_files.dlrm()
    layers[0] |= {"format": "Raw", "source": "train.bin", "eval_source": "val.bin"}

    # When it is trained, Then it learns
    assert train(config_of(tmp_path, layers), MODELS)["best"]["auc"] > 0.8


def test_columns_that_do_not_fit_are_refused(tmp_path):
    write_parquet(tmp_path / "train", 100, 1)
    listing = tmp_path / "train/_metadata.json"
    listed = json.loads(listing.read_text())
    listing.write_text(json.dumps({**listed, "cats": listed["cats"][:2]}))
    with pytest.raises(ValueError, match="expected 3 cats, as .*net.json has, got 2"):
        train(config_of(tmp_path, hugectr_files.dcn()), MODELS)

    listing.unlink()
    with pytest.raises(ValueError, match="_metadata.json: expected NVTabular's list of columns"):
        train(config_of(tmp_path, hugectr_files.dcn()), MODELS)


def test_a_layer_that_is_none_is_refused(tmp_path):
    layers = hugectr_files.dcn()
    layers[6]["type"] = "MultiHeadAttention"

    with pytest.raises(ConfigError, match="model.file: .*layer 'fc1': .*'MultiHeadAttention'"):
        train(config_of(tmp_path, layers), MODELS)
