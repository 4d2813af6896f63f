"""A config -> its model: network, loss, optimizer and data."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

from group_embedding.compat.hugectr import Network, read_graph
from group_embedding.keras_compat import keras
from group_embedding.optimizers import maker_of
from group_embedding.ranks.distributed import DistributedOptimizer
from group_embedding.recommender.config.check import ConfigError, make
from group_embedding.recommender.config.read import Config
from group_embedding.recommender.zoo.config_data import ConfigData, HugeCTRData
from group_embedding.recommender.zoo.configured_model import ConfiguredModel


def make_model(
    config: Config, models: Mapping[str, Any], pipeline_folder: Any = None, fits: bool = True
) -> ConfiguredModel:
    """The model of a config.

    Args:
        config: the config.
        models: the classes that `model.name` names.
        pipeline_folder: a folder with a pipeline that `ge.data.Pipeline.save` wrote; None: the
            pipeline is fitted to `data.train`, if a step of it needs it.
        fits: False leaves the pipeline as it is: features whose ids a fitted step makes then have
            tables of keys.

    Raises:
        ConfigError: the config's model, schema, optimizer or preprocessing is wrong.
    """
    keras.utils.set_random_seed(config["training"]["seed"])
    if config["model"]["name"] == "hugectr":
        network, data = _make_hugectr(config)
    else:
        data = ConfigData(config)
        if pipeline_folder is not None and data.pipeline is not None:
            data.load_pipeline(pipeline_folder)
        elif data.needs_fit and fits:
            data.fit()
        network = _make_network(config, models, data)
    return ConfiguredModel(config, network, _make_optimizer(config), data)


def _make_hugectr(config):
    stated = dict(config["model"])
    path = stated.pop("file", None)
    unknown = [key for key in stated if key != "name"]
    if unknown or not isinstance(path, str):
        key = unknown[0] if unknown else "file"
        raise ConfigError(
            f"{config.path}: model.{key}: expected the key file, of a HugeCTR JSON file, alone"
        )
    try:
        graph = read_graph(config.locate(path))
        with _policy(config):
            return Network(graph), HugeCTRData(config, graph)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{config.path}: model.file: {error}") from error


def _make_network(config, models, data):
    arguments = dict(config["model"])
    made = models[arguments.pop("name")]
    if "tasks" in inspect.signature(made).parameters:  # all labels, unless the config has others
        arguments.setdefault("tasks", list(data.label_columns))
    with _policy(config):
        return make(f"{config.path}: model", made, arguments, data.schema, others=["name"])


@contextlib.contextmanager
def _policy(config):
    """Inside, layers that are made have the config's precision."""
    default = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(config["precision"])
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy(default)


def _make_optimizer(config):
    arguments = dict(config["optimizer"])
    name, _ = arguments.pop("name"), arguments.pop("schedule")
    where = f"{config.path}: optimizer"
    optimizer = make(where, maker_of(name), arguments, others=["name", "schedule"])
    optimizer = make(where, DistributedOptimizer, {}, optimizer)
    if config["precision"] == "mixed_float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    return optimizer
