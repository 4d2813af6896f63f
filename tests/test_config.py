"""TableConfig and FeatureConfig: what they take, what they refuse, and in which words."""

import ast
import dataclasses
import pathlib
import re
import sys

import numpy as np
import pytest

from group_embedding import config, placement
from group_embedding.config import FeatureConfig, TableConfig, distinct_names
from group_embedding.layers import feature_plan
from group_embedding.ranks.sharding import placement_plan

CHOICES = ", ".join(map(repr, config.COMBINERS))


def test_table_has_defaults():
    table = TableConfig("user", num_rows=10, dim=4)
    assert table.combiner == "mean"
    assert (table.initializer, table.max_norm, table.dtype) == (None, None, None)
    assert table.trainable


def test_configs_are_frozen_and_compared_by_value():
    # given two descriptions of one feature
    one = FeatureConfig("u", TableConfig("user", 10, 4), combiner="sum")
    two = FeatureConfig("u", TableConfig("user", 10, 4), combiner="sum")
    # then they are equal, work as keys, and cannot be changed
    assert one == two and len({one, two}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.table.dim = 8
    # but a changed copy can be made
    assert dataclasses.replace(one.table, dim=8).dim == 8


def test_numpy_numbers_and_dtypes_become_plain_ones():
    table = TableConfig(
        "t", np.int64(10), np.int32(4), max_norm=np.float32(2), dtype=np.dtype("float16")
    )
    assert (type(table.num_rows), type(table.dim), type(table.max_norm)) == (int, int, float)
    assert table.dtype == "float16"


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (
            {"name": ""},
            ValueError,
            "table: expected a name that is a string and not empty, got ''",
        ),
        ({"name": 3}, ValueError, "got 3"),
        ({"num_rows": 0}, ValueError, "table 'user': expected num_rows to be at least 1, got 0"),
        (
            {"num_rows": 1e6},
            TypeError,
            "table 'user': expected num_rows to be an int, got 1000000.0",
        ),
        ({"dim": -1}, ValueError, "table 'user': expected dim to be at least 1, got -1"),
        ({"dim": True}, TypeError, "table 'user': expected dim to be an int, got True"),
        (
            {"combiner": "max"},
            ValueError,
            f"table 'user': expected combiner to be one of {CHOICES}, got 'max'",
        ),
        ({"combiner": None}, ValueError, "got None"),
        ({"max_norm": 0}, ValueError, "table 'user': expected max_norm to be positive"),
        ({"max_norm": "1"}, TypeError, "table 'user': expected max_norm to be a number or None"),
        (
            {"dtype": "int8"},
            ValueError,
            "expected dtype to be one of 'float32', 'float16', 'bfloat16', got 'int8'",
        ),
        ({"initializer": 3}, TypeError, "table 'user': expected an initializer"),
        (
            {"trainable": "yes"},
            TypeError,
            "table 'user': expected trainable to be a bool, got 'yes'",
        ),
    ],
)
def test_bad_table_is_refused(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        TableConfig(**{**{"name": "user", "num_rows": 10, "dim": 4}, **arguments})


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"name": None}, ValueError, "feature: expected a name"),
        (
            {"table": "user"},
            TypeError,
            "feature 'u': expected table to be a TableConfig, got 'user'",
        ),
        ({"combiner": "Sum"}, ValueError, "feature 'u': expected combiner to be one of 'mean'"),
        ({"weights_feature": ""}, ValueError, "feature 'u': weights_feature: expected a name"),
        (
            {"weights_feature": "u"},
            ValueError,
            "feature 'u': expected weights_feature to name another",
        ),
    ],
)
def test_bad_feature_is_refused(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        FeatureConfig(**{**{"name": "u", "table": TableConfig("user", 10, 4)}, **arguments})


PURE = {
    "group_embedding.config",
    "group_embedding.placement",
    "group_embedding.ranks.sharding.placement_plan",
}


@pytest.mark.parametrize("module", [config, placement, feature_plan, placement_plan])
def test_neither_tensorflow_nor_the_native_library_is_imported(module):
    # given the source of the module
    tree = ast.parse(pathlib.Path(module.__file__).read_text())
    # when its imports are listed
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    # then they are the standard library's, and this pair's own
    assert imported - PURE <= sys.stdlib_module_names | {"collections.abc"}


@pytest.mark.parametrize(
    "given, expected",
    [
        ([], []),
        (["a", "b"], ["a", "b"]),
        (["a", "a", "b", "a"], ["a", "a#2", "b", "a#3"]),
        (["a", "a", "a#2", "a"], ["a", "a#3", "a#2", "a#4"]),
        (["a#2", "a#2", "a"], ["a#2", "a#2#2", "a"]),
    ],
)
def test_names_are_told_apart(given, expected):
    assert distinct_names(given) == expected
