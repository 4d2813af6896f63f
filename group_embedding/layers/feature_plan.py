"""The features of a layer -> its tables, its inputs, and what its tables cost the ranks.

Pure functions of plain values; neither TensorFlow nor the native library is imported.
"""

from collections.abc import Mapping

from group_embedding.config import FeatureConfig
from group_embedding.ranks.sharding.placement_plan import TableLoad


def plan_features(features):
    """Returns the features as a tuple, in the order given.

    Args:
      features: An iterable of `FeatureConfig`, or a mapping from each feature's name to it.

    Raises:
      TypeError: Something in it is no `FeatureConfig`.
      ValueError: No feature, two of one name, or a key that is not the name of its feature.
    """
    if isinstance(features, FeatureConfig):
        features = [features]
    if isinstance(features, Mapping):
        for key, feature in features.items():
            if isinstance(feature, FeatureConfig) and feature.name != key:
                raise ValueError(
                    f"features[{key!r}]: expected the key to be the name of its feature, "
                    f"got feature '{feature.name}'"
                )
        features = features.values()
    planned = {}
    for feature in features:
        if not isinstance(feature, FeatureConfig):
            raise TypeError(f"features: expected each to be a FeatureConfig, got {feature!r}")
        if feature.name in planned:
            raise ValueError(
                f"feature '{feature.name}': expected one feature of this name, got two"
            )
        planned[feature.name] = feature
    if not planned:
        raise ValueError("features: expected at least one FeatureConfig, got none")
    return tuple(planned.values())


def plan_tables(features):
    """Returns the tables that the features look up, each once, in the order of first use.

    Raises:
      ValueError: Two different tables have one name.
    """
    tables = {}
    for feature in features:
        table = tables.setdefault(feature.table.name, feature.table)
        if table != feature.table:
            raise ValueError(
                f"table '{table.name}': expected every feature to describe it alike, got {table} "
                f"and, for feature '{feature.name}', {feature.table}; share one TableConfig, "
                "or name the tables differently"
            )
    return tuple(tables.values())


def table_loads(tables):
    """A TableLoad for each TableConfig: the memory and traffic that it costs its ranks."""
    return [
        TableLoad(t.name, t.num_rows, t.dim, t.expected_ids, t.placement, 2 if _is_half(t) else 4)
        for t in tables
    ]


def _is_half(table):
    return table.dtype in ("float16", "bfloat16")


def plan_inputs(features):
    """Returns the names of all inputs that the features read: ids, then weights, each once."""
    names = [feature.name for feature in features]
    names += [feature.weights_feature for feature in features if feature.weights_feature]
    return tuple(dict.fromkeys(names))
