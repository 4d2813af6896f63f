"""The two encodings of a feature, as columns and as ids, name the same rows."""

import numpy as np
import pytest
import tensorflow as tf

from dlrm import columns, criteo, ids, movielens
from dlrm.features import Numeric
from dlrm.report import table

v1 = tf.compat.v1


def counts(examples, feature):
    """[n, num_rows]: how often each row is named, as the feature column has it."""
    with tf.Graph().as_default(), v1.Session() as session:
        tensors = {name: tf.constant(array) for name, array in examples.features.items()}
        column = columns.categorical_column(feature)
        counted = v1.feature_column.input_layer(
            tensors, [tf.feature_column.indicator_column(column)]
        )
        session.run(v1.tables_initializer())
        return session.run(counted)


def check_same_rows(schema, examples):
    encoded = ids.encoder(schema)(
        {name: tf.constant(array) for name, array in examples.features.items()}
    )
    for feature in schema.categorical:
        # one_hot leaves the padding, -1, out
        named = tf.reduce_sum(tf.one_hot(encoded[feature.name], feature.num_rows), axis=1)
        np.testing.assert_array_equal(named, counts(examples, feature), err_msg=feature.name)
        assert encoded[feature.name].dtype == tf.int64


@pytest.mark.skipif(
    not hasattr(v1.feature_column, "input_layer"), reason="this TensorFlow has no input_layer"
)
class TestIdsAreThoseOfTheColumns:
    def test_movielens(self, movielens_folder):
        check_same_rows(movielens.SCHEMA, movielens.load_movielens(movielens_folder)[:50])

    def test_criteo_with_empty_fields(self, criteo_file):
        examples = criteo.load_criteo(criteo_file)[:50]
        assert any((examples.features[f"C{i}"] == b"").any() for i in range(1, 27))
        check_same_rows(criteo.SCHEMA, examples)


def test_numbers_are_prefetched_near_one():
    age = Numeric("age", shift=35, scale=20)
    np.testing.assert_allclose(age.scaled(tf.constant([35.0, 55.0, 1e9])), [0, 1, 5])
    count = Numeric("count", log=True)
    np.testing.assert_allclose(
        count.scaled(tf.constant([0.0, np.e - 1, 1 - np.e])), [0, 1, -1], rtol=1e-6
    )


def test_table_shows_the_columns_that_all_have():
    results = [
        {"model": "stock", "auc": 0.71234, "log_loss": 0.6, "ops_in_graph": 2742},
        {"model": "grouped", "auc": 0.7, "log_loss": 0.61234, "ops_in_graph": 99, "steps": 3},
    ]
    assert table(results).splitlines() == [
        "            AUC  log loss  ops in the graph",
        "  stock  0.7123    0.6000             2,742",
        "grouped  0.7000    0.6123                99",
    ]
