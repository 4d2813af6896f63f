"""The features of a model, and their tables as the model trains them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from group_embedding.config import (
    TABLE_DTYPES,
    FeatureConfig,
    TableConfig,
    check_choice,
    distinct_names,
)
from group_embedding.layers import GroupEmbedding


def features_of(model: Any) -> list[FeatureConfig]:
    """The features of a Keras model, a `GroupEmbedding`, or a list of FeatureConfigs. Those of one
    layer or list whose tables are alike share one TableConfig.

    Raises:
        ValueError: the model has no features, or a list something else.
    """
    return [feature for _, feature in _asked(model)]


def features_as_trained(model: Any, dtype: str | None) -> list[FeatureConfig]:
    """The features of a model with tables as it trains them: their rows have a type, tables of
    frozen layers are frozen, and the second of two tables named "items" is "items#2".

    Args:
        dtype: of rows of tables that name none; None: that of their layer, or float32.
    """
    if dtype is not None:
        dtype = check_choice("rows of tables", "dtype", getattr(dtype, "name", dtype), TABLE_DTYPES)
    asked = _asked(model)
    layers: dict[int, list[Any]] = {}
    tables: dict[int, TableConfig] = {}
    for layer, feature in asked:
        layers.setdefault(id(feature.table), []).append(layer)
        tables[id(feature.table)] = feature.table
    names = dict(zip(tables, distinct_names(table.name for table in tables.values())))

    def as_trained(table):
        of_table = layers[id(table)]
        return dataclasses.replace(
            table,
            name=names[id(table)],
            dtype=table.dtype or dtype or getattr(of_table[0], "variable_dtype", TABLE_DTYPES[0]),
            trainable=table.trainable and any(getattr(la, "trainable", True) for la in of_table),
        )

    return replace_tables([feature for _, feature in asked], as_trained)


def replace_tables(
    features: Sequence[FeatureConfig], change: Callable[[TableConfig], TableConfig]
) -> list[FeatureConfig]:
    """The features with `change(table)` in the place of each table. Features that share a
    TableConfig share the new one."""
    changed: dict[int, TableConfig] = {}
    for feature in features:
        if id(feature.table) not in changed:
            changed[id(feature.table)] = change(feature.table)
    return [dataclasses.replace(f, table=changed[id(f.table)]) for f in features]


def optimizer_of(model: Any) -> Any:
    """The optimizer that a model is compiled with, or None."""
    return getattr(model, "optimizer", None)


def leaves_out_invalid(model: Any) -> bool:
    """Returns whether a layer of the model reads zeros for ids past the end of their table."""
    return any(layer._invalid_ids == "ignore" for layer in _layers_of(model))


def _asked(model):
    """(layer, or None in a list; feature) of each feature."""
    if isinstance(model, Sequence) and not isinstance(model, str):
        given = [(None, feature) for feature in model]
    else:
        given = [(layer, feature) for layer in _layers_of(model) for feature in layer.features]
    if not given:
        raise ValueError(
            "model: expected a model with a GroupEmbedding, or a list of FeatureConfigs, got "
            f"{model!r}"
        )
    for _, feature in given:
        if not isinstance(feature, FeatureConfig):
            raise ValueError(f"model: expected a list of FeatureConfigs, got {feature!r} in it")
    return _with_shared_tables(given)


def _layers_of(model):
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else ()
    return [layer for layer in dict.fromkeys(layers) if isinstance(layer, GroupEmbedding)]


def _with_shared_tables(asked):
    """Features of one layer whose tables are alike get one TableConfig, as the layer makes one
    table of both."""
    tables: dict[tuple[int, str], list[TableConfig]] = {}
    shared = []
    for layer, feature in asked:
        known = tables.setdefault((id(layer), feature.table.name), [])
        if feature.table not in known:
            known.append(feature.table)
        table = known[known.index(feature.table)]
        shared.append((layer, dataclasses.replace(feature, table=table)))
    return shared
