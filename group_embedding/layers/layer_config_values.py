"""Features and their tables to and from what Keras writes as JSON."""

import dataclasses

from group_embedding.config import FeatureConfig, TableConfig
from group_embedding.keras_compat import keras
from group_embedding.layers import sharing
from group_embedding.layers.feature_plan import plan_tables
from group_embedding.variables.saved_options import option_from_config, option_to_config


def features_to_config(features):
    """Returns {"tables": ..., "features": ...}: every table once, features with its name."""
    return {
        "tables": [_table_to_config(table) for table in plan_tables(features)],
        "features": [{**_fields(feature), "table": feature.table.name} for feature in features],
    }


def features_from_config(config):
    """The inverse of `features_to_config`; features that shared a table share one again, and so do
    layers that come from one file."""
    tables = {table["name"]: _table_from_config(table) for table in config["tables"]}
    return [
        FeatureConfig(**{**feature, "table": tables[feature["table"]]})
        for feature in config["features"]
    ]


def _table_to_config(table):
    config = _fields(table)
    if not (table.initializer is None or isinstance(table.initializer, str)):
        config["initializer"] = keras.initializers.serialize(table.initializer)
    config["ev_option"] = option_to_config(table.ev_option)
    name = sharing.name_in_file(table)
    return config if name is None else {**config, "name_in_file": name}


def _table_from_config(config):
    config = dict(config)
    name = config.pop("name_in_file", None)
    initializer = config["initializer"]
    if isinstance(initializer, dict):
        initializer = keras.initializers.deserialize(initializer)
    ev_option = option_from_config(config["ev_option"])
    values = {**config, "initializer": initializer, "ev_option": ev_option}
    return sharing.config_in_file(name, lambda: TableConfig(**values))


def _fields(config):
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
