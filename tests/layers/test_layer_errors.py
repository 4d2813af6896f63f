"""Errors of GroupEmbedding, and their messages."""

import re

import numpy as np
import pytest
import tensorflow as tf

from group_embedding.config import FeatureConfig, TableConfig
from group_embedding.layers import GroupEmbedding

keras = tf.keras
IDS = np.array([[1, 2], [3, 4]])
WEIGHTS = np.ones((2, 2), np.float32)


def layer_of(**kwargs):
    return GroupEmbedding([FeatureConfig("x", TableConfig("t", 10, 4), **kwargs)], name="embedding")


@pytest.mark.parametrize(
    "inputs, error, message",
    [
        (IDS, TypeError, "layer 'embedding': expected inputs to be a dict by feature name, got"),
        ({}, ValueError, "expected inputs ['x'], got []: missing 'x'"),
        ({"y": IDS}, ValueError, "expected inputs ['x'], got ['y']: missing 'x'"),
        ({"x": WEIGHTS}, TypeError, "feature 'x': expected integer ids, got float32"),
        (
            {"x": IDS[:, :, None]},
            ValueError,
            "feature 'x': expected dense ids of rank 1 or 2, got shape (2, 2, 1)",
        ),
        (
            {"x": tf.ragged.constant([[[1], [2, 3]]])},
            ValueError,
            "feature 'x': expected ragged ids of rank 2, got shape (1, None, None)",
        ),
        (
            {"x": tf.SparseTensor([[0]], [1], [1])},
            ValueError,
            "feature 'x': expected sparse ids of rank 2 or more, got shape (1,)",
        ),
        (
            {"x": (IDS, WEIGHTS[:, :1])},
            ValueError,
            "feature 'x': expected weights of the shape of the ids, (2, 2), got (2, 1)",
        ),
        (
            {"x": (IDS, IDS)},
            TypeError,
            "feature 'x': expected floating-point weights, got int64",
        ),
        (
            {"x": (IDS, tf.sparse.from_dense(WEIGHTS))},
            ValueError,
            "feature 'x': expected weights of the same kind as the ids, got dense ids and",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_inputs_are_refused(inputs, error, message):
    with pytest.raises(error, match=re.escape(message)):
        layer_of()(inputs)


def test_dense_ids_of_unknown_rank_are_refused():
    layer = layer_of()
    layer.build()
    lookup = tf.function(layer.call, input_signature=[{"x": tf.TensorSpec(None, tf.int64)}])
    with pytest.raises(
        ValueError, match="feature 'x': expected dense ids of rank 1 or 2, got shape"
    ):
        lookup({"x": IDS})


def test_ids_of_strings_are_refused():
    with pytest.raises(TypeError, match="feature 'x': expected integer ids, got string; hash them"):
        layer_of()({"x": tf.constant(["a", "b"])})


def test_symbolic_inputs_are_checked_too():
    with pytest.raises(
        TypeError, match="feature 'x': expected integer ids, got float32; keras.Input"
    ):
        layer_of()({"x": keras.Input((3,))})
    with pytest.raises(ValueError, match=r"missing 'x'"):
        layer_of()({"y": keras.Input((3,), dtype="int64")})


def test_dense_weights_of_another_shape_are_refused_when_the_shape_is_known_late():
    # given a function that gets no sizes
    layer = layer_of()
    lookup = tf.function(
        lambda ids, weights: layer({"x": (ids, weights)}),
        input_signature=[tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None, None])],
    )
    # when / then
    with pytest.raises(tf.errors.InvalidArgumentError, match="feature .*x.*: expected weights"):
        lookup(np.ones((2, 3), np.int64), np.ones((3, 2), np.float32))


def test_weights_from_two_places_are_refused():
    with pytest.raises(
        ValueError, match="feature 'x': expected its weights from one place, got them"
    ):
        layer_of(weights_feature="w")({"x": (IDS, WEIGHTS), "w": WEIGHTS})


def test_a_missing_weights_input_is_named():
    with pytest.raises(
        ValueError, match=re.escape("expected inputs ['x', 'w'], got ['x']: missing 'w'")
    ):
        layer_of(weights_feature="w")({"x": IDS})


def test_weights_of_an_unknown_feature_are_refused():
    with pytest.raises(
        ValueError, match=re.escape("expected weights ['x'], got ['z']: unknown 'z'")
    ):
        layer_of()({"x": IDS}, weights={"z": WEIGHTS})


def test_bad_options_are_refused():
    feature = FeatureConfig("x", TableConfig("t", 10, 4))
    with pytest.raises(
        ValueError, match="expected invalid_ids to be one of 'raise', 'ignore', got 'zero'"
    ):
        GroupEmbedding([feature], invalid_ids="zero")
    with pytest.raises(
        ValueError, match="table 't': expected dtype to be one of .*, got 'float64'"
    ):
        GroupEmbedding([feature], dtype="float64").build()
    with pytest.raises(ValueError, match="table 'a/b': expected a name without '/'"):
        GroupEmbedding([FeatureConfig("x", TableConfig("a/b", 10, 4))]).build()
