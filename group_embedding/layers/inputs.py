"""Converts a layer's inputs into the arguments of the group lookup.

Nothing here looks at values: real tensors and Keras' symbolic ones (which have a dtype and a shape)
are picked and checked by the same functions.
"""

from collections.abc import Mapping

import tensorflow as tf

from group_embedding.keras_compat import is_built_from_shapes
from group_embedding.layers.feature_plan import plan_inputs
from group_embedding.lookups import feature_ids

_LOOKUP_ID_DTYPES = (tf.int32, tf.int64, tf.uint32, tf.uint64)


def pick_inputs(layer_name, features, inputs, weights=None):
    """Returns the ids and the weights (`None` where there are none) of each feature, as two lists.

    Args:
      layer_name: The layer's name, for messages.
      features: The features, a sequence of `FeatureConfig`.
      inputs: dict of ids, or of a pair (ids, weights), by feature name; and the inputs that
        `weights_feature` names. Others are for other layers, and ignored.
      weights: `None`, or a dict of weights by feature name.

    Raises:
      TypeError: Not dicts.
      ValueError: An input is missing, weights are of an unknown feature, or a feature has weights
        twice.
    """
    names = [feature.name for feature in features]
    _check_dict(layer_name, "inputs", inputs)
    _check_names(layer_name, "inputs", inputs, expected=plan_inputs(features), optional=inputs)
    if weights is not None:
        _check_dict(layer_name, "weights", weights)
        _check_names(layer_name, "weights", weights, expected=(), optional=names)

    all_ids, all_weights = [], []
    for feature in features:
        ids = inputs[feature.name]
        given = {}
        if _is_pair(ids):
            ids, given["the pair (ids, weights)"] = ids
        if feature.weights_feature is not None:
            given[f"weights_feature '{feature.weights_feature}'"] = inputs[feature.weights_feature]
        if weights is not None and weights.get(feature.name) is not None:
            given["the argument weights"] = weights[feature.name]
        if len(given) > 1:
            raise ValueError(
                f"feature '{feature.name}': expected its weights from one place, "
                f"got them from {' and '.join(given)}"
            )
        all_ids.append(ids)
        all_weights.append(next(iter(given.values()), None))
    return all_ids, all_weights


def check_ids(feature, ids):
    """Raises if `ids`, a real or a symbolic tensor, cannot be looked up as this feature."""
    dtype = tf.as_dtype(ids.dtype)
    if not dtype.is_integer:
        raise TypeError(
            f"feature '{feature.name}': expected integer ids, got {dtype.name}; "
            + (
                "hash them or look them up in a vocabulary first"
                if dtype == tf.string
                else "keras.Input makes float32 unless it is given a dtype"
            )
        )
    kind, rank = _kind(ids), tf.TensorShape(ids.shape).rank
    expected, fits = {
        "sparse": ("2 or more", rank is None or rank >= 2),
        "ragged": ("2", rank in (None, 2)),
        "dense": ("1 or 2", rank in (1, 2)),
    }[kind]
    if feature.is_sequence:
        expected, fits = "2, as the feature is a sequence", rank in (None, 2)
    if not fits:
        raise ValueError(
            f"feature '{feature.name}': expected {kind} ids of rank {expected}, "
            f"got shape {ids.shape}"
        )


def check_weights(feature, ids, weights):
    """Raises if `weights` cannot be the weights of `ids`: real or symbolic tensors."""
    if _kind(ids) != _kind(weights):
        raise ValueError(
            f"feature '{feature.name}': expected weights of the same kind as the ids, "
            f"got {_kind(ids)} ids and {_kind(weights)} weights"
        )
    if not tf.as_dtype(weights.dtype).is_floating:
        raise TypeError(
            f"feature '{feature.name}': expected floating-point weights, "
            f"got {tf.as_dtype(weights.dtype).name}"
        )
    if not tf.TensorShape(ids.shape).is_compatible_with(weights.shape):
        raise ValueError(
            f"feature '{feature.name}': expected weights of the shape of the ids, "
            f"{tuple(ids.shape)}, got {tuple(weights.shape)}"
        )


def to_tensors(feature, ids, weights):
    """Returns ids and weights (or None) as checked tensors, of ids in a type that is looked up."""
    ids = _to_tensor(ids)
    if _stands_for_ids(ids):
        ids, weights = tf.cast(ids, tf.int64), None
        if ids.shape.rank != 1:
            ids = tf.sparse.from_dense(ids)
    check_ids(feature, ids)
    if ids.dtype not in _LOOKUP_ID_DTYPES:
        ids = tf.cast(ids, tf.int64)
    if weights is not None:
        weights = _to_tensor(weights)
        check_weights(feature, ids, weights)
    return ids, weights


def to_lookup(feature, ids, weights):
    """Returns the results of `to_tensors` of a feature that is no sequence as the lookup takes
    them; dense ids bring their weights along."""
    if _kind(ids) != "dense":
        return ids, weights
    return feature_ids.from_padded(feature.name, ids, weights), None


def output_shape(feature, ids_shape):
    """Returns the shape of the result for ids of this shape: one vector per sample, or its
    sequence."""
    shape = tuple(tf.TensorShape(ids_shape).as_list())
    if feature.is_sequence:
        return (shape[0], None if feature.ragged else feature.max_length, feature.table.dim)
    return (shape if len(shape) == 1 else shape[:-1]) + (feature.table.dim,)


def _stands_for_ids(ids):
    """Returns whether these are floats in the shape of ids, with which Keras builds a subclassed
    model."""
    return _kind(ids) == "dense" and ids.dtype.is_floating and is_built_from_shapes()


def _to_tensor(x):
    is_composite = isinstance(x, (tf.SparseTensor, tf.RaggedTensor))
    return x if is_composite else tf.convert_to_tensor(x)


def _kind(x):
    if isinstance(x, tf.SparseTensor) or getattr(x, "sparse", False) is True:
        return "sparse"
    if isinstance(x, tf.RaggedTensor) or getattr(x, "ragged", False) is True:
        return "ragged"
    return "dense"


def _is_pair(value):
    # A pair that went through JSON, as a functional model's calls do, comes back as a list.
    return (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and all(hasattr(part, "dtype") and hasattr(part, "shape") for part in value)
    )


def _check_dict(layer_name, what, value):
    if not isinstance(value, Mapping):
        raise TypeError(
            f"layer '{layer_name}': expected {what} to be a dict by feature name, "
            f"got {type(value).__name__}"
        )


def _check_names(layer_name, what, given, expected, optional):
    missing = [name for name in expected if name not in given]
    unknown = [name for name in given if name not in expected and name not in optional]
    if not missing and not unknown:
        return
    problems = [
        f"{word} {', '.join(repr(name) for name in names)}"
        for word, names in (("missing", missing), ("unknown", unknown))
        if names
    ]
    raise ValueError(
        f"layer '{layer_name}': expected {what} {list(expected) or list(optional)}, "
        f"got {list(given)}: {'; '.join(problems)}"
    )
