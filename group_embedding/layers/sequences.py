"""Sequences: features whose rows stay apart, as lookups of one id for each position.

A sequence of `max_length` L is looked up as L samples of one id or none for each sample of the
batch. It is then a feature like any other of its group: one op looks up all. `ids` below, with
L = 3, become the ids and row splits at their right, whose results are `[6, dim]`:

    sample 0: 7 8        ids         7 8 5
    sample 1: 5          row splits  0 1 2 2 3 3 3
"""

import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.lookups import feature_ids
from group_embedding.ops.group_ids import FeatureIds, group_ids


def to_positions(feature, ids, weights):
    """The lookup of a sequence.

    Negative ids are left out, but for tables of keys: a sequence has no gaps.

    Args:
      feature: The `FeatureConfig`.
      ids: The checked ids of the feature, of rank 2: dense, ragged or sparse.
      weights: None, or weights of the same form.

    Returns:
      A `FeatureIds` whose samples are positions, or with `ragged` ids; and int64 [samples + 1], the
      row splits of the sequences.
    """
    with tf.device(_device_of(ids)):
        has_keys = feature.table.num_rows is None
        rows, weights = _checked_rows(feature.name, has_keys, ids, weights)
        if feature.max_length is not None:
            rows, weights = _cut(feature, rows, weights)
        splits = rows.row_splits
        if feature.ragged:
            return FeatureIds(feature.name, "single", rows.values, weights=weights), splits
        of_positions = _position_splits(splits, feature.max_length)
        lookup = FeatureIds(feature.name, "ragged", rows.values, of_positions)
        if weights is not None:
            lookup = lookup._replace(weights=weights, weight_partition=of_positions)
        return lookup, splits


def to_sequences(feature, vectors, splits):
    """The vectors of a sequence, [positions, dim] as looked up -> [samples, max_length, dim], or
    ragged."""
    if feature.ragged:
        return tf.RaggedTensor.from_row_splits(vectors, splits, validate=False)
    return tf.reshape(vectors, [-1, feature.max_length, feature.table.dim])


def mask_of(feature, splits):
    """bool [samples, max_length]: whether a position has an id. None for ragged sequences."""
    if feature.ragged:
        return None
    return tf.sequence_mask(splits[1:] - splits[:-1], feature.max_length)


def symbolic_mask(feature, ids):
    """The mask of a sequence of Keras' symbolic ids, for a functional model of Keras 3: there a
    mask is the output of a layer."""
    has_keys = feature.table.num_rows is None
    return SequenceMask(feature.name, feature.max_length, has_keys)(ids)


@keras.utils.register_keras_serializable(package="group_embedding")
class SequenceMask(keras.layers.Layer):
    """The mask of a sequence, given its ids.

    Args:
      feature_name: For messages.
      max_length: The length of the sequence.
      has_keys: Whether ids are keys, of which negative ones count.
    """

    def __init__(self, feature_name, max_length, has_keys, **kwargs):
        kwargs.setdefault("autocast", False)
        super().__init__(**kwargs)
        self._feature_name, self._max_length = feature_name, max_length
        self._has_keys = has_keys

    def call(self, ids):
        with tf.device(_device_of(ids)):
            rows, _ = _checked_rows(self._feature_name, self._has_keys, ids, None)
            return tf.sequence_mask(rows.row_lengths(), self._max_length)

    def compute_output_spec(self, ids):
        return keras.KerasTensor((ids.shape[0], self._max_length), dtype="bool")

    def get_config(self):
        return {
            **super().get_config(),
            "feature_name": self._feature_name,
            "max_length": self._max_length,
            "has_keys": self._has_keys,
        }


def _device_of(ids):
    """Packing has its inputs in host memory, unless they are known to be on a GPU."""
    values = ids if isinstance(ids, tf.Tensor) else ids.values
    return None if "GPU" in (values.device or "") else "/CPU:0"


def _checked_rows(name, has_keys, ids, weights):
    """The ids of a feature as a RaggedTensor, without negative ones unless they are keys; and one
    float32 weight per id, or None. The op that packs ids checks indices and row splits; here it
    packs one feature."""
    is_dense = isinstance(ids, tf.Tensor)
    make = feature_ids.from_padded if is_dense else feature_ids.from_rows
    given = make(name, ids, weights)
    batch = group_ids([given], keyed=[0] if has_keys else [])
    num_splits, num_ids = batch.sizes[0, 0] + 1, batch.sizes[0, 1]
    words = tf.reshape(batch.buffer[: 2 * (num_splits + num_ids)], [-1, 2])
    splits, values = tf.split(tf.bitcast(words, tf.int64), [num_splits, num_ids], num=2)
    values = tf.cast(values, given.values.dtype)
    rows = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
    weights = None if weights is None else tf.reshape(given.weights, [-1])
    if has_keys or rows.dtype.is_unsigned:
        return rows, weights
    return _without_negative(rows, weights)


def _without_negative(rows, weights):
    is_id = rows.values >= 0
    ids_before = tf.pad(tf.cumsum(tf.cast(is_id, tf.int64)), [[1, 0]])
    splits = tf.gather(ids_before, rows.row_splits)
    weights = None if weights is None else tf.boolean_mask(weights, is_id)
    values = tf.boolean_mask(rows.values, is_id)
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False), weights


def _cut(feature, rows, weights):
    """At most `max_length` ids of each sample, and their weights."""
    begins, ends = rows.row_splits[:-1], rows.row_splits[1:]
    if feature.keep == "last":
        begins = tf.maximum(begins, ends - feature.max_length)
    else:
        ends = tf.minimum(ends, begins + feature.max_length)
    kept = tf.ragged.range(begins, ends, row_splits_dtype=tf.int64)
    weights = None if weights is None else tf.gather(weights, kept.values)
    return kept.with_values(tf.gather(rows.values, kept.values)), weights


def _position_splits(splits, length):
    """Row splits of `length` samples with an id or none each, for every sequence."""
    positions = tf.range(length, dtype=tf.int64)
    begins = tf.minimum(splits[:-1, None] + positions, splits[1:, None])
    return tf.concat([tf.reshape(begins, [-1]), splits[-1:]], axis=0)
