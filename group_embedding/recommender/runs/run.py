"""`Run`: a config's model in the folder of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from group_embedding.ranks import exchange
from group_embedding.recommender.config.check import ConfigError
from group_embedding.recommender.config.read import Config
from group_embedding.recommender.runs.checkpoints import RunCheckpoints
from group_embedding.recommender.runs.metrics import StreamedMetrics
from group_embedding.recommender.runs.remote_run import fetch_run, upload_files
from group_embedding.recommender.zoo.config_data import example_batch
from group_embedding.recommender.zoo.configured_model import ConfiguredModel, inner_optimizer
from group_embedding.recommender.zoo.make_model import make_model

# Sections of a config that a run keeps, but for these keys: a learning rate may change on the way.
_KEPT = ("schema", "model", "optimizer", "precision")
_FREE = ("optimizer.learning_rate", "optimizer.schedule")


class Run:
    """A model in the folder of its run: preprocessing, variables and checkpoints.

    Args:
        config: the config.
        models: the classes that `model.name` names.

    Raises:
        ConfigError: the folder has a run of another model.
    """

    def __init__(self, config: Config, models: Mapping[str, Any]) -> None:
        self.config, self.folder = config, config.folder
        fetch_run(config)
        self._check_folder()
        self.model = _make_model(config, models, self.folder / "pipeline")
        reader = self.model.make_reader("train", "validation", "test")
        build(self.model, reader)
        self.checkpoints = RunCheckpoints(self.model, self.folder, config["checkpoints"]["keep"])

    def evaluate(self, *splits: str, max_batches: int | None = None) -> dict[str, float]:
        """Loss and AUC of a split; all ranks call it together."""
        reader = self.model.make_reader(*splits)
        metrics = self.new_metrics()
        for number, batch in enumerate(self.model.batches(reader), 1):
            loss, logits = self.model.evaluate_outputs(batch)
            metrics.add(loss, logits, self.model.labels_of(batch))
            if number == max_batches:
                break
        return metrics.result()

    def new_metrics(self) -> StreamedMetrics:
        """Metrics of the model's labels."""
        return StreamedMetrics(self.model.labels if self.model.labels_are_binary else ())

    def restore_best(self) -> int:
        """Restores the best checkpoint, or the newest, if there was no evaluation.

        Returns:
            The number of its step.

        Raises:
            ConfigError: there is none.
        """
        if not self.checkpoints.restore("best") and not self.checkpoints.restore():
            raise ConfigError(
                f"{self.folder}: expected a checkpoint of a run, got none; train first, or give "
                "its checkpoints.folder"
            )
        return self.checkpoints.state.step

    def write_config(self) -> None:
        """Keeps the config with the run."""
        if exchange.current().rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "config.json").write_text(json.dumps(self.config.values, indent=1))
            upload_files(self.config)

    def _check_folder(self):
        try:
            kept = json.loads((self.folder / "config.json").read_text())
        except (OSError, ValueError):
            return
        kept = {key: kept.get(key) for key in _KEPT}
        now = json.loads(json.dumps({key: self.config[key] for key in _KEPT}))
        difference = _find_difference(kept, now)
        if difference is not None:
            path, expected, got = difference
            raise ConfigError(
                f"{self.config.path}: {path}: expected {expected!r:.300}, as the run in "
                f"{self.folder} has, got {got!r:.300}; give another checkpoints.folder to begin a "
                "new run"
            )


def _find_difference(kept, now, path=""):
    """The path and both values of the first key that differs, or None."""
    if path in _FREE or kept == now:
        return None
    if not isinstance(kept, dict) or not isinstance(now, dict):
        return path, kept, now
    for key in {**kept, **now}:
        inner = f"{path}.{key}" if path else key
        found = _find_difference(kept.get(key), now.get(key), inner)
        if found is not None:
            return found
    return None


def build(model: ConfiguredModel, reader: Any) -> None:
    """Makes the variables of a model and of its optimizer, for a checkpoint to be restored into."""
    features = model.data.features(example_batch(reader))
    model.network(features, training=False)
    inner_optimizer(model.optimizer).build(model.network.trainable_variables)


def _make_model(config, models, folder):
    """The model; the first rank fits the preprocessing of a new run, and the others read it."""
    ranks = exchange.current()
    if ranks.num_ranks > 1 and ranks.rank > 0:
        ranks.barrier("fitted_pipeline")
    is_fitted = tf.io.gfile.exists(str(folder / "pipeline.json"))
    model = make_model(config, models, folder if is_fitted else None)
    if ranks.rank == 0:
        if model.data.pipeline is not None and not is_fitted:
            model.data.pipeline.save(folder)
        if ranks.num_ranks > 1:
            ranks.barrier("fitted_pipeline")
    return model
