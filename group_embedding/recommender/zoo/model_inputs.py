"""The inputs of a model as plain values: features, dense inputs, linear tables, histories."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Union

from group_embedding.config import FeatureConfig
from group_embedding.layers import plan_features
from group_embedding.recommender.data.schema import Schema

Features = Union[Schema, Sequence[FeatureConfig]]
Dense = Union[str, Sequence[str], Mapping[str, int], None]


def plan_model_features(features: Features, dim: int) -> tuple[FeatureConfig, ...]:
    """The features of a schema, whose tables have rows of `dim` where it says nothing; or those
    given."""
    if isinstance(features, Schema):
        features = features.feature_configs(dim)
    return plan_features(features)


def plan_dense(model: str, features: Features, dense: Dense) -> dict[str, int]:
    """{name: width} of the dense inputs; None: the continuous columns of a schema."""
    if dense is None:
        continuous = features.features if isinstance(features, Schema) else ()
        return {feature.name: 1 for feature in continuous if feature.kind == "continuous"}
    if not isinstance(dense, Mapping):
        dense = dict.fromkeys([dense] if isinstance(dense, str) else dense, 1)
    for name, width in dense.items():
        if not isinstance(name, str) or isinstance(width, bool) or not isinstance(width, int):
            raise TypeError(
                f"{model}: expected dense to be names, or a dict from names to widths, got "
                f"{name!r}: {width!r}"
            )
        if width < 1:
            raise ValueError(f"{model}: expected dense['{name}'] of 1 or more, got {width}")
    return dict(dense)


def with_sequences(model, features, names, max_length):
    """The features, those of `names` as sequences of the last `max_length` ids, unless they are
    sequences with a `max_length` of their own."""
    check_known(model, features, names)

    def planned(feature):
        if feature.name not in names or feature.max_length is not None:
            return feature
        values = {"combiner": None, "ragged": False, "max_length": max_length, "keep": "last"}
        return dataclasses.replace(feature, **values)

    features = tuple(planned(feature) for feature in features)
    for feature in features:
        if feature.name in names and feature.ragged:
            raise ValueError(
                f"{model}: expected feature '{feature.name}' with ragged=False, as the model reads "
                "positions, got True"
            )
    lengths = {feature.name: feature.max_length for feature in features if feature.name in names}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{model}: expected sequences of one max_length, got {lengths}")
    return features


def linear_features(features):
    """A feature `<name>_linear` beside each: its table has one number in the place of each row, at
    first zero."""
    tables = {}
    for feature in features:
        table = feature.table
        tables.setdefault(
            table.name,
            dataclasses.replace(
                table, name=f"{table.name}_linear", dim=1, initializer="zeros", max_norm=None
            ),
        )
    return tuple(
        dataclasses.replace(f, name=f"{f.name}_linear", table=tables[f.table.name])
        for f in features
    )


def chosen_features(model, features, names):
    """The features of these names; None: all."""
    if names is None:
        return tuple(features)
    check_known(model, features, names)
    return tuple(feature for feature in features if feature.name in names)


def check_known(model, features, names):
    """Raises ValueError if a name is not that of a feature."""
    known = [feature.name for feature in features]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ValueError(
                f"{model}: expected a feature of {', '.join(known)}, got {name!r}{hint}"
            )


def check_combined(model, features):
    """Raises ValueError if a feature is a sequence."""
    for feature in features:
        if feature.is_sequence:
            raise ValueError(
                f"{model}: expected features with a combiner, got the sequence '{feature.name}'"
            )


def one_dim(model, features):
    """The dim that the tables of all features have.

    Raises:
      ValueError: their dims differ.
    """
    dims = {feature.name: feature.table.dim for feature in features}
    if len(set(dims.values())) != 1:
        raise ValueError(f"{model}: expected tables of one dim, got {dims}")
    return next(iter(dims.values()))


def check_units(model: str, **arguments: Sequence[int]) -> None:
    """Raises if an argument is not a sequence of positive integers."""
    for name, units in arguments.items():
        is_sequence = isinstance(units, Sequence) and not isinstance(units, str)
        if not is_sequence or not all(isinstance(u, int) and u > 0 for u in units):
            raise ValueError(
                f"{model}: expected {name} to be the sizes of layers, positive integers as in "
                f"(256, 128), got {units!r}"
            )
