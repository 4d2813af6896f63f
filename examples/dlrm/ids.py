"""Features as tensors of ids, [B, width] int64 padded with -1: what feature columns do inside.

Plain TensorFlow, for where feature columns do not go: a tf.data pipeline in front of Keras. The ids
are those that `columns.py` arrives at.
"""

import tensorflow as tf

from dlrm.features import Bucketized, Crossed, Hashed, Identity, Vocabulary


def encoder(schema):
    """A function: tensors by feature name -> {"numbers": [B, n], and ids by table name}."""
    known = [f for f in schema.categorical if isinstance(f, Vocabulary)]
    vocabularies = {f.name: table_of(f.words) for f in known}

    def encode(features):
        numbers = [n.scaled(features[n.name]) for n in schema.numeric]
        ids = {f.name: to_ids(f, features, vocabularies) for f in schema.categorical}
        return {"numbers": tf.stack(numbers, axis=1), **ids}

    return encode


def table_of(words):
    pairs = tf.lookup.KeyValueTensorInitializer(words, tf.range(len(words), dtype=tf.int64))
    return tf.lookup.StaticHashTable(pairs, default_value=-1)


def to_ids(feature, features, vocabularies):
    if isinstance(feature, Hashed):
        words = features[feature.name]
        ids = tf.strings.to_hash_bucket_fast(words, feature.num_rows)
        return two_axes(tf.where(words == "", tf.constant(-1, tf.int64), ids))
    if isinstance(feature, Vocabulary):
        return two_axes(vocabularies[feature.name].lookup(features[feature.name]))
    if isinstance(feature, Identity):
        return two_axes(features[feature.name])
    if isinstance(feature, Bucketized):
        numbers = features[feature.source]
        ids = tf.raw_ops.Bucketize(input=numbers, boundaries=feature.boundaries)
        return two_axes(tf.cast(ids, tf.int64))
    if isinstance(feature, Crossed):
        parts = [without_padding(to_ids(f, features, vocabularies)) for f in feature.of]
        crossed = tf.sparse.cross_hashed(parts, feature.num_rows)
        return tf.sparse.to_dense(crossed, default_value=-1)
    raise TypeError(f"expected a feature of features.py, got {feature!r}")


def two_axes(ids):
    return ids if ids.shape.rank == 2 else ids[:, tf.newaxis]


def without_padding(ids):
    """[B, width] with -1 as padding -> SparseTensor."""
    places = tf.where(ids >= 0)
    return tf.SparseTensor(places, tf.gather_nd(ids, places), tf.shape(ids, tf.int64))
