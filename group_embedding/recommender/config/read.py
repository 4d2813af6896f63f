"""A config file and overrides -> a complete `Config`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from group_embedding.compat.hugectr import config_of_graph, is_hugectr, read_graph
from group_embedding.recommender.config.check import ConfigError, complete
from group_embedding.recommender.config.json_schema import json_schema
from group_embedding.recommender.data import plain_values


@dataclasses.dataclass(frozen=True)
class Config:
    """A complete config: every key of the JSON Schema has a value.

    Attributes:
      values: the values by key; `config["data"]` is one of them.
      path: the file.
      left_out: keys of a HugeCTR file that have no meaning here.
    """

    values: dict[str, Any]
    path: Path
    left_out: tuple[str, ...] = ()

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @property
    def folder(self) -> Path:
        """The local folder of the run, relative to the working directory."""
        folder = None if self.url else self["checkpoints"]["folder"]
        return Path(folder or Path("runs") / self.path.stem)

    @property
    def url(self) -> str | None:
        """The URL of the run's folder; None: it is a folder of this machine."""
        folder = self["checkpoints"]["folder"]
        return folder.rstrip("/") if folder and "://" in folder else None

    def files(self, *splits: str) -> list[str] | None:
        """The files of the first of these keys of `data` that has some; relative paths are
        relative to the config file's folder."""
        for split in splits:
            value = self["data"][split]
            if value:
                return [self.locate(one) for one in ([value] if isinstance(value, str) else value)]
        return None

    def locate(self, path: str) -> str:
        """A path that the config names: from the folder of the config file, if it is relative."""
        return path if "://" in path else os.path.join(self.path.parent, path)


def read_config(
    path: str | os.PathLike, overrides: Sequence[str] = (), model_names: Sequence[str] = ()
) -> Config:
    """Reads a config file.

    Args:
        path: a YAML file, or a JSON file, by its name; or a JSON file of HugeCTR.
        overrides: "key.path=value" each; the value is YAML.
        model_names: what `model.name` may be, beside "hugectr".

    Raises:
        ConfigError: the file, or an override, has a key or a value that does not fit.
    """
    path = Path(path)
    left_out: list[str] = []
    values = _load(path)
    if is_hugectr(values):
        try:
            values, left_out = config_of_graph(read_graph(path))
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected keys and values, got {values!r:.100}")
    for override in overrides:
        _override(values, override)
    schema = json_schema((*model_names, "hugectr"))
    config = Config(complete(schema, values, str(path)), path, tuple(left_out))
    _check_together(config)
    return config


def _load(path):
    try:
        return plain_values.load(path)
    except OSError as error:
        raise ConfigError(f"{path}: expected a config file, {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _override(values, override):
    key, is_there, text = override.partition("=")
    names = key.split(".")
    if not is_there or not all(names):
        raise ConfigError(f"override '{override}': expected key.path=value, as model.dim=32")
    try:
        value = plain_values.parse(text)
    except ValueError as error:
        raise ConfigError(f"override '{override}': behind '=' {error}") from None
    inner = values
    for name in names[:-1]:
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"override '{override}': expected keys in '{name}', got {inner!r}")
    inner[names[-1]] = value


def _check_together(config):
    """Checks keys that depend on each other, which a JSON Schema does not say."""
    data, ranks = config["data"], config["ranks"]["number"]
    for key in ("batch_size", "evaluation_batch_size"):
        if data[key] is not None and data[key] % ranks:
            raise ConfigError(
                f"{config.path}: data.{key}: expected a multiple of ranks.number, {ranks}, got "
                f"{data[key]}"
            )
    if config["schema"] is None and config["model"]["name"] != "hugectr":
        raise ConfigError(
            f"{config.path}: schema: expected the schema of the data, got none; a first one is "
            "written by python -m group_embedding.data describe FILES --schema schema.yaml"
        )
    if config["training"]["metric"] == "auc" and config["loss"]["name"] == "mean_squared_error":
        raise ConfigError(
            f"{config.path}: training.metric: expected loss, as loss.name is "
            f"{config['loss']['name']}, got auc"
        )
    for key, choices in config["tune"]["parameters"].items():
        _check_choices(config, key, choices)


def _check_choices(config, key, choices):
    where = f"{config.path}: tune.parameters.{key}"
    if isinstance(choices, list) and choices:
        return
    is_range = isinstance(choices, dict) and {"low", "high"} <= set(choices) <= {
        *("low", "high", "log")
    }
    if not is_range or not choices["low"] < choices["high"]:
        raise ConfigError(
            f"{where}: expected a list of values, or low and high (and log), got {choices!r}"
        )
    if config["tune"]["search"] == "grid":
        raise ConfigError(f"{where}: expected a list of values for a grid, got {choices!r}")
    if choices.get("log") and choices["low"] <= 0:
        raise ConfigError(f"{where}: expected low above 0 with log, got {choices['low']}")
