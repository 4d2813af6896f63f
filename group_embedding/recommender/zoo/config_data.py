"""The readers, the schema and the preprocessing that a config describes."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import tensorflow as tf

from group_embedding.compat.hugectr import Graph, columns_of
from group_embedding.ranks import exchange
from group_embedding.recommender.config.check import ConfigError, make
from group_embedding.recommender.config.read import Config
from group_embedding.recommender.data import binary_files, fitted_steps, steps
from group_embedding.recommender.data.columns import Column
from group_embedding.recommender.data.pipeline import Pipeline
from group_embedding.recommender.data.reader import Reader
from group_embedding.recommender.data.schema import Schema


class ConfigData:
    """Readers, schema and preprocessing of a config, for a model of a `Schema`.

    Args:
        config: the config.

    Raises:
        ConfigError, ValueError: the schema, or a step of preprocessing, is wrong.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._schema = _load_schema(config)
        self._steps = _make_steps(config, self._schema)
        self.pipeline = Pipeline(self._steps) if self._steps else None

    @property
    def schema(self) -> Schema:
        """The schema of what the pipeline makes: features without a size have the number of ids of
        their step."""
        sizes = self.pipeline.num_ids if self.pipeline and not self.needs_fit else {}
        features = []
        for feature in self._schema.features:
            is_open = feature.num_ids is None and feature.hash_size is None
            if feature.kind == "categorical" and feature.name in sizes and is_open:
                feature = dataclasses.replace(feature, num_ids=sizes[feature.name], dtype="int64")
            features.append(feature)
        return Schema(features)

    @property
    def label_columns(self) -> dict[str, str]:
        """The column of each label, by the label's name."""
        labels = self._schema.labels or ()
        return {name: name for name in ((labels,) if isinstance(labels, str) else labels)}

    @property
    def needs_fit(self) -> bool:
        """True if a step of preprocessing is not fitted to the data yet."""
        return any(not step.fitted for step in self._steps)

    def fit(self) -> None:
        """Fits the pipeline to the files of `data.train`, in one pass."""
        assert self.pipeline is not None
        self.pipeline.fit(self.reader("train", rank=0, num_ranks=1, epochs=1, shuffle_rows=0))

    def load_pipeline(self, folder: str | os.PathLike) -> None:
        """Takes the pipeline that was saved in a folder."""
        self.pipeline = Pipeline.load(folder)
        self._steps = self.pipeline.steps

    def reader(self, *splits: str, has_labels: bool = True, **options: Any) -> Reader:
        """A reader of the files of the first of these keys of `data` that has some.

        Args:
            splits: "train", "validation" or "test".
            has_labels: whether files have the labels.
            **options: of `Reader`, in place of what the config says.

        Raises:
            ConfigError: there are no such files.
        """
        labels = list(self.label_columns) if has_labels else []
        made_by_steps = {name for step in self._steps for name in step.outputs}
        read_by_steps = {name for step in self._steps for name in step.inputs}
        columns = [
            feature.column
            for feature in self._schema.features
            if (feature.kind != "label" or has_labels)
            and (feature.name not in made_by_steps or feature.name in read_by_steps)
        ]
        known = {column.name for column in columns}
        columns += [Column(name) for name in sorted(read_by_steps - known - made_by_steps)]
        named = labels[0] if len(labels) == 1 else labels or None
        return make_reader(self._config, splits, columns=columns, labels=named, **options)

    def features(self, read: Any) -> Any:
        """The features that a reader gave, with the outputs of the pipeline."""
        return self.pipeline(read) if self.pipeline else read


class HugeCTRData:
    """Readers of a config, for the network of a HugeCTR file."""

    pipeline = None
    needs_fit = False

    def __init__(self, config: Config, graph: Graph) -> None:
        self._config, self._graph = config, graph
        self._slots = [slot for one in graph.sparse for slot in one.slots]
        self._columns: dict[str, list[str]] | None = None

    @property
    def label_columns(self) -> dict[str, str]:
        """The column of each label, by the label's name; the names of the graph, before a reader is
        made."""
        columns = self._columns["labels"] if self._columns else self._graph.labels
        return dict(zip(self._graph.labels, columns))

    def reader(self, *splits: str, has_labels: bool = True, **options: Any) -> Reader:
        """A reader of Parquet files with NVTabular's `_metadata.json`, or of Raw files; arguments
        are those of `ConfigData.reader`."""
        graph = self._graph
        form: Any = self._config["data"]["format"] or "parquet"
        if form == "hugectr":
            dense = [f"{graph.dense[0]}_{i}" for i in range(graph.dense[1])]
            names = {"labels": list(graph.labels), "dense": dense, "slots": self._slots}
            form = binary_files.HugeCTRRawFormat(names["labels"], dense, self._slots)
        else:
            try:
                names = columns_of(graph, find_split(self._config, splits))
            except ValueError as error:
                raise ConfigError(str(error)) from None
        self._columns = names
        columns = [Column(name, "float32") for name in names["dense"]]
        columns += [Column(name, "int64") for name in names["slots"]]
        labels = names["labels"] if has_labels else []
        columns += [Column(name, "float32") for name in labels]
        groups = {graph.dense[0]: names["dense"]} if names["dense"] else {}
        named = labels[0] if len(labels) == 1 else labels or None
        options = {"format": form, "groups": groups, **options}
        return make_reader(self._config, splits, columns=columns, labels=named, **options)

    def features(self, read: Any) -> Any:
        """The features that a reader gave, under the names of the network."""
        assert self._columns is not None
        renamed = dict(zip(self._columns["slots"], self._slots))
        return {renamed.get(name, name): value for name, value in read.items()}


def find_split(config: Config, splits: tuple[str, ...]) -> list[str]:
    """The files of the first of these keys of `data` that has some.

    Raises:
        ConfigError: none has.
    """
    files = config.files(*splits)
    if not files:
        keys = " or ".join(f"data.{split}" for split in splits)
        raise ConfigError(f"{config.path}: {keys}: expected files, got none")
    return files


def make_reader(config: Config, splits: tuple[str, ...], **options: Any) -> Reader:
    """A `Reader` of a split, by the keys of `data`.

    Raises:
        ConfigError: there are no files, or they have not the columns of the schema.
        FileNotFoundError: a file that the config names is not there.
    """
    data, num_ranks = config["data"], exchange.current().num_ranks
    is_training = splits[0] == "train"
    size = data["batch_size"] if is_training else data["evaluation_batch_size"]
    stated = {
        "files": find_split(config, splits),
        "batch_size": (size or data["batch_size"]) // num_ranks,
        "format": data["format"],
        "shuffle_rows": data["shuffle_rows"] if is_training else 0,
        "drop_remainder": data["drop_remainder"] and is_training,
        "epochs": config["training"]["epochs"] if is_training else 1,
        "seed": config["training"]["seed"],
        "on_bad_rows": data["on_bad_rows"],
        "num_threads": data["threads"],
    }
    return make(f"{config.path}: data", Reader, {**stated, **options})


def example_batch(reader: Reader) -> Any:
    """Two rows of zeros of a reader's features; lists have one value."""
    spec = reader.element_spec
    features = spec[0] if isinstance(spec, tuple) else spec
    return {name: _zeros(one) for name, one in features.items()}


def _zeros(spec):
    is_list = isinstance(spec, tf.RaggedTensorSpec)
    shape = [2] if is_list else [2, *spec.shape[1:]]
    values = tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)
    return tf.RaggedTensor.from_row_lengths(values, [1, 1]) if is_list else values


def _load_schema(config):
    given = config["schema"]
    try:
        schema = (
            Schema.load(config.locate(given)) if isinstance(given, str) else Schema.from_dict(given)
        )
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(f"{config.path}: schema: {error}") from None
    if schema.labels is None:
        raise ConfigError(f"{config.path}: schema: expected a feature of kind label, got none")
    return schema


def _make_steps(config, schema):
    stated = config["data"]["preprocessing"]
    made = [_make_step(config, number, one) for number, one in enumerate(stated)]
    with_ids = {name for step in made if step.num_ids is not None for name in step.outputs}
    for feature in schema.features:
        if feature.hash_size is not None and feature.name not in with_ids:
            made.append(steps.Hash(feature.name, feature.hash_size))
    return made


def _make_step(config, number, values):
    arguments = dict(values)
    name = arguments.pop("step")
    made = getattr(steps, name, None) or getattr(fitted_steps, name)
    where = f"{config.path}: data.preprocessing[{number}]"
    return make(where, made, arguments, others=["step"])
