"""A config -> its model: network, loss, optimizer and data."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

from group_embedding.compat.hugectr import Network, read_graph
from group_embedding.config import nearest
from group_embedding.keras_compat import keras
from group_embedding.optimizers import arguments_of, make_named
from group_embedding.ranks.distributed import DistributedOptimizer
from group_embedding.recommender.config.check import ConfigError
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
    known = [
        name
        for name, parameter in inspect.signature(made).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ][1:]  # the first is the schema
    for key in arguments:
        if key not in known:
            raise ConfigError(
                f"{config.path}: model.{key}: expected one of the keys name, {', '.join(known)}, "
                f"got '{key}'{nearest(key, known)}"
            )
    if "tasks" in known:  # of a model with several labels: all of them, unless it is told others
        arguments.setdefault("tasks", list(data.label_columns))
    try:
        with _policy(config):
            return made(data.schema, **arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{config.path}: model: {error}") from error


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
    known = arguments_of(name)
    for key in arguments:
        if key not in known:
            raise ConfigError(
                f"{config.path}: optimizer.{key}: expected one of the keys name, schedule, "
                f"{', '.join(known)}, got '{key}'{nearest(key, known)}"
            )
    try:
        optimizer = DistributedOptimizer(make_named(name, **arguments))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{config.path}: optimizer: {error}") from error
    if config["precision"] == "mixed_float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    return optimizer
