"""The features that the tests of the layer share: two tables, three features, one of each form."""

import numpy as np
import pytest
import tensorflow as tf

from group_embedding.config import FeatureConfig, TableConfig

BATCH = 4


@pytest.fixture
def features():
    items = TableConfig("items", num_rows=10, dim=4)
    words = TableConfig("words", num_rows=20, dim=3, combiner="sum")
    return [
        FeatureConfig("item", items),
        FeatureConfig("history", items, combiner="sqrtn"),
        FeatureConfig("title", words),
    ]


@pytest.fixture
def inputs():
    return {
        "item": tf.constant([1, 9, 0, 4], tf.int64),
        "history": tf.ragged.constant([[1, 2], [], [3], [4, 5, 4]], dtype=tf.int64),
        "title": tf.SparseTensor(
            [[0, 0], [0, 1], [1, 1], [3, 0]], tf.constant([1, 19, 3, 0]), [4, 2]
        ),
    }


@pytest.fixture
def symbolic_inputs():
    """The batch as inputs of a functional model."""
    return {
        "item": tf.keras.Input((), dtype="int64", name="item"),
        "history": tf.keras.Input((None,), dtype="int64", ragged=True, name="history"),
        "title": tf.keras.Input((None,), dtype="int32", sparse=True, name="title"),
    }


@pytest.fixture
def dataset(inputs):
    labels = np.arange(BATCH, dtype=np.float32)[:, None] % 2
    return tf.data.Dataset.from_tensors((inputs, labels)).repeat(5)
