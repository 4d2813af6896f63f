"""From features to tables and inputs: pure functions of the configs."""

import re

import pytest

from group_embedding.config import FeatureConfig, TableConfig
from group_embedding.layers.feature_plan import plan_features, plan_inputs, plan_tables

ITEMS = TableConfig("items", 10, 4)
USERS = TableConfig("users", 20, 8)


def test_features_keep_their_order_and_tables_are_listed_once():
    # given three features, two of which share a table
    features = plan_features(
        [
            FeatureConfig("seen", ITEMS, weights_feature="age"),
            FeatureConfig("user", USERS),
            FeatureConfig("item", TableConfig("items", 10, 4), weights_feature="age"),
        ]
    )
    # then
    assert [feature.name for feature in features] == ["seen", "user", "item"]
    assert plan_tables(features) == (ITEMS, USERS)
    assert plan_inputs(features) == ("seen", "user", "item", "age")


def test_features_may_come_by_name():
    user = FeatureConfig("user", USERS)
    assert plan_features({"user": user}) == plan_features([user]) == plan_features(user) == (user,)


@pytest.mark.parametrize(
    "features, error, message",
    [
        ([], ValueError, "features: expected at least one FeatureConfig, got none"),
        ([ITEMS], TypeError, "features: expected each to be a FeatureConfig, got TableConfig("),
        (
            [FeatureConfig("item", ITEMS), FeatureConfig("item", USERS)],
            ValueError,
            "feature 'item': expected one feature of this name, got two",
        ),
        (
            {"user": FeatureConfig("item", ITEMS)},
            ValueError,
            "features['user']: expected the key to be the name of its feature, got feature 'item'",
        ),
    ],
)
def test_bad_features_are_refused(features, error, message):
    with pytest.raises(error, match=re.escape(message)):
        plan_features(features)


def test_two_tables_of_one_name_are_refused():
    features = [FeatureConfig("a", ITEMS), FeatureConfig("b", TableConfig("items", 10, 8))]
    with pytest.raises(ValueError, match="table 'items': expected every .* feature 'b'.*dim=8"):
        plan_tables(features)
