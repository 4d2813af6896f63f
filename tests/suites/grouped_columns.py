"""A pytest plugin: embedding columns of tests of TensorFlow, Keras and Estimators are grouped.

    PYTHONPATH=tests/suites python -m pytest -p grouped_columns .../feature_column_v2_test.py

Each column is made in a scope of its own, so it is looked up by the fused op, and all that the test
asserts (values, names of variables, gradients, serialization) is asserted of grouped columns.
"""

import functools

from tensorflow.python.feature_column import feature_column, feature_column_v2

import group_embedding as ge

_CONSTRUCTORS = ["embedding_column", "shared_embedding_columns", "shared_embedding_columns_v2"]


def _in_scope(make_columns):
    @functools.wraps(make_columns)
    def make(*args, **kwargs):
        with ge.group_embedding_column_scope():
            return make_columns(*args, **kwargs)

    return make


def pytest_configure():
    import tensorflow as tf

    for module in (
        feature_column,
        feature_column_v2,
        tf.feature_column,
        tf.compat.v1.feature_column,
    ):
        for name in _CONSTRUCTORS:
            if hasattr(module, name):
                setattr(module, name, _in_scope(getattr(module, name)))
