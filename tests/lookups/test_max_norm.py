"""One rule for max_norm, wherever it is given."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import IS_KERAS_3

IDS = {"user": tf.ragged.constant([[0, 1], [2]]), "item": tf.ragged.constant([[1], [0, 0]])}
ROWS = {"user": [[3.0, 4.0], [1.0, 0.0], [0.3, 0.4]], "item": [[6.0, 8.0], [0.1, 0.2]]}


def by_lookup(max_norm):
    tables = [tf.Variable(ROWS[name], name=name) for name in IDS]
    ids = list(IDS.values())
    return ge.group_embedding_lookup_sparse(tables, ids, "sum", max_norm=[None, max_norm])


def by_routed_ids(max_norm):
    tables = [tf.Variable(ROWS[name], name=name) for name in IDS]
    routed = ge.route_ids(tables, list(IDS.values()), "sum", max_norm=[None, max_norm])
    return ge.group_embedding_lookup_sparse(tables, routed, "sum", max_norm=[None, max_norm])


def by_layer(max_norm):
    norms = {"user": None, "item": max_norm}
    features = []
    for name, rows in ROWS.items():
        start = tf.constant_initializer(rows)
        table = ge.TableConfig(name, len(rows), 2, start, "sum", max_norm=norms[name])
        features.append(ge.FeatureConfig(name, table))
    return list(ge.layers.GroupEmbedding(features)(IDS).values())


def by_columns(max_norm):
    fc, norms, columns = tf.feature_column, {"user": None, "item": max_norm}, []
    with ge.group_embedding_column_scope():
        for name, rows in ROWS.items():
            column = fc.categorical_column_with_identity(name, len(rows))
            start = tf.constant_initializer(rows)
            columns.append(fc.embedding_column(column, 2, "sum", start, max_norm=norms[name]))
    ids = {name: of_feature.to_sparse() for name, of_feature in IDS.items()}
    return [tf.keras.layers.DenseFeatures([column])(ids) for column in columns]


NO_COLUMNS = pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has no DenseFeatures")
LOOKUPS = [by_lookup, by_routed_ids, by_layer, pytest.param(by_columns, marks=NO_COLUMNS)]


@pytest.mark.parametrize("look_up", LOOKUPS)
def test_infinity_is_no_limit(look_up):
    # Given rows of norms 10 and 0.2, When they are looked up without a limit
    user, item = look_up(np.float32("inf"))
    # Then they are as they are, beside those of another table
    np.testing.assert_allclose(user, [[4, 4], [0.3, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(item, [[0.1, 0.2], [12, 16]], rtol=1e-6)
    np.testing.assert_allclose(look_up(5)[1], [[0.1, 0.2], [6, 8]], rtol=1e-6)


@pytest.mark.parametrize("look_up", LOOKUPS)
@pytest.mark.parametrize("max_norm", [0, -1.0, float("nan"), 1e-60, float("-inf")], ids=str)
def test_what_is_not_positive_is_refused(look_up, max_norm):
    told = rf"item.*': expected max_norm to be positive in float32, .* got {float(max_norm)}"
    with pytest.raises(ValueError, match=told):
        look_up(max_norm)


@pytest.mark.parametrize("look_up", LOOKUPS)
@pytest.mark.parametrize("max_norm", ["1", True, [1.0]], ids=str)
def test_what_is_no_number_is_refused(look_up, max_norm):
    with pytest.raises(TypeError, match="item.*': expected max_norm to be a number or None, got"):
        look_up(max_norm)
