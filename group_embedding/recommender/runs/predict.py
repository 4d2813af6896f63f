"""`predict`: the predictions of a run's best checkpoint for files of samples."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import tensorflow as tf

from group_embedding.files import is_remote, local_path, remote_files
from group_embedding.ranks import exchange
from group_embedding.recommender.config.check import ConfigError
from group_embedding.recommender.config.read import Config
from group_embedding.recommender.runs.run import Run

_WRITERS = {".parquet": pyarrow.parquet.ParquetWriter, ".csv": pyarrow.csv.CSVWriter}


def predict(config: Config, models: Mapping[str, Any]) -> str:
    """Writes a prediction for each row of `predict.files`, or of `data.test`, in their order.

    The files need no labels. Over several ranks each writes the rows that it reads, which follow
    those of the rank before, as `<name>-00000-of-00002.parquet` and so on.

    Args:
        config: the config of a run.
        models: the classes that `model.name` names.

    Returns:
        The file of this rank: a column for each label, float32: the probability of 1, or with the
        loss mean_squared_error the number.

    Raises:
        ConfigError: there is no run, or no file to predict for.
    """
    path = _output(config)
    files = config["predict"]["files"]
    if files is None and config.files("test", "validation") is None:
        raise ConfigError(f"{config.path}: predict.files: expected files, got none")
    run = Run(config, models)
    run.restore_best()
    options: dict[str, Any] = {"has_labels": False, "on_bad_rows": "raise"}
    if files is not None:
        names = [files] if isinstance(files, str) else files
        options["files"] = [config.locate(name) for name in names]
    reader = run.model.make_reader("test", "validation", "train", **options)
    schema = pa.schema([(name, pa.float32()) for name in run.model.labels])
    with _written(path) as local, _WRITERS[PurePath(path).suffix](local, schema) as writer:
        for arrays in _predictions(run.model, reader):
            writer.write_table(pa.table(arrays, schema))
    return path


@contextlib.contextmanager
def _written(path):
    """A local path, whose content is then uploaded, if `path` is a URL."""
    if not is_remote(path):
        path = local_path(path)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="group_embedding_") as folder:
        local = os.path.join(folder, os.path.basename(path))
        yield local
        remote_files.upload(local, path)


def _predictions(model, reader) -> Iterator[dict[str, np.ndarray]]:
    function = tf.function(model.predict, reduce_retracing=True)
    for features in model.batches(reader):
        yield {name: array.numpy() for name, array in function(features).items()}


def _output(config):
    path = config["predict"]["output"] or str(config.folder / "predictions.parquet")
    stem, suffix = os.path.splitext(path)
    if suffix not in _WRITERS:
        raise ConfigError(
            f"{config.path}: predict.output: expected a name that ends in .parquet or .csv, got "
            f"'{path}'"
        )
    ranks = exchange.current()
    if ranks.num_ranks == 1:
        return path
    return f"{stem}-{ranks.rank:05}-of-{ranks.num_ranks:05}{suffix}"
