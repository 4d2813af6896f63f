"""Features as TensorFlow feature columns."""

import tensorflow as tf

from dlrm.features import Bucketized, Crossed, Hashed, Identity, Vocabulary
from dlrm.model import INITIAL_STDDEV, seed_of

fc = tf.feature_column


def numeric_columns(schema):
    return [fc.numeric_column(n.name, normalizer_fn=n.scaled) for n in schema.numeric]


def embedding_columns(schema, dim, column_of_keys=None):
    """One embedding column for each categorical feature; open-ended ones by `column_of_keys(name,
    dtype)`, if that is given."""

    def column_of(feature):
        if column_of_keys is None or feature not in schema.open_ended:
            return categorical_column(feature)
        return column_of_keys(feature.name, tf.string if isinstance(feature, Hashed) else tf.int64)

    return [
        fc.embedding_column(
            column_of(feature),
            dimension=dim,
            combiner="mean",
            initializer=tf.compat.v1.truncated_normal_initializer(
                stddev=INITIAL_STDDEV, seed=seed_of(feature.name)
            ),
        )
        for feature in schema.categorical
    ]


def categorical_column(feature):
    if isinstance(feature, Hashed):
        return fc.categorical_column_with_hash_bucket(feature.name, feature.num_rows)
    if isinstance(feature, Vocabulary):
        return fc.categorical_column_with_vocabulary_list(feature.name, feature.words)
    if isinstance(feature, Identity):
        return fc.categorical_column_with_identity(feature.name, feature.num_rows)
    if isinstance(feature, Bucketized):
        return fc.bucketized_column(fc.numeric_column(feature.source), feature.boundaries)
    if isinstance(feature, Crossed):
        return fc.crossed_column([categorical_column(f) for f in feature.of], feature.num_rows)
    raise TypeError(f"expected a feature of features.py, got {feature!r}")
