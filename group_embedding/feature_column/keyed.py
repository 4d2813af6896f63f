"""Categorical columns whose values are keys of an EmbeddingVariable."""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc_v2

from group_embedding.annotations import DTypeLike
from group_embedding.feature_column import scope
from group_embedding.feature_column.variable import Keys
from group_embedding.variables.get_variable import note_one_piece
from group_embedding.variables.keyed_options import KeyedOptions, TableOptions
from group_embedding.variables.saved_options import option_from_config, option_to_config

_KEY_DTYPES = (tf.int64, tf.int32, tf.uint32, tf.uint64)


def categorical_column_with_embedding(
    key: str,
    dtype: DTypeLike = tf.string,
    partition_num: int | None = None,
    ev_option: TableOptions | None = None,
) -> Any:
    """A column of keys: any integers, or strings, that need no vocabulary and no number of buckets.

    An embedding column made of it (`embedding_column`, `shared_embeddings`,
    `shared_embedding_columns`; also with `weighted_categorical_column` and
    `sequence_categorical_column_with_embedding`) keeps its rows in an EmbeddingVariable. It is
    looked up by the fused op, inside `group_embedding_column_scope` and outside.

    Strings become keys by a hash of 63 bits. Where ids come in a dense tensor, -1 and "" stand for
    no value, as in all of TensorFlow's columns; in a SparseTensor every integer is a key.

    Args:
      key: the feature's name.
      dtype: `tf.string` or int32, int64, uint32, uint64.
      partition_num: None or how many pieces DeepRec's table has. The table is one piece, and a
        warning says so once; `enable_distributed_strategy` spreads it over ranks.
      ev_option: KeyedOptions, or DeepRec's EmbeddingVariableOption; None: the default.
        Its rows start as the initializer of the embedding column says.

    Returns:
      A categorical column.

    Raises:
      ValueError: another dtype.

    Example:

    >>> user = ge.categorical_column_with_embedding("user", tf.int64)
    >>> column = tf.feature_column.embedding_column(user, dimension=4)
    >>> column.name
    'user_embedding'
    """
    dtype = tf.as_dtype(dtype)
    if dtype != tf.string and dtype not in _KEY_DTYPES:
        expected = ", ".join(known.name for known in (tf.string, *_KEY_DTYPES))
        raise ValueError(f"column '{key}': expected dtype to be one of {expected}, got {dtype!r}")
    if partition_num not in (None, 1):
        note_one_piece("partition_num")
    scope.group_lone_columns(has_keys)
    fc_v2.IndicatorColumn.__init__ = _refuse_keys  # which has none
    return KeyedCategoricalColumn(key, dtype, ev_option or KeyedOptions())


def sequence_categorical_column_with_embedding(
    key: str,
    dtype: DTypeLike = tf.string,
    partition_num: int | None = None,
    ev_option: TableOptions | None = None,
) -> Any:
    """`categorical_column_with_embedding` for sequences: see
    `tf.feature_column.sequence_categorical_column_with_identity`.

    Example:

    >>> clicks = ge.sequence_categorical_column_with_embedding("clicks", tf.int64)
    >>> tf.feature_column.embedding_column(clicks, dimension=4).name
    'clicks_embedding'
    """
    return fc_v2.SequenceCategoricalColumn(
        categorical_column_with_embedding(key, dtype, partition_num, ev_option)
    )


def _refuse_keys(column, *args, **kwargs):
    """`__init__` of indicator columns: `__new__` has stored the arguments."""
    del args, kwargs
    if has_keys(column):
        column.categorical_column._num_buckets.refuse("indicator_column")


def has_keys(column):
    """Returns whether a column's table is an EmbeddingVariable."""
    if isinstance(column, fc_v2.SharedEmbeddingColumn):
        return isinstance(column.shared_embedding_column_creator._num_buckets, Keys)
    return isinstance(getattr(column.categorical_column, "_num_buckets", None), Keys)


@fc_v2.serialization.register_feature_column
class KeyedCategoricalColumn(
    fc_v2.CategoricalColumn,
    fc_v1._CategoricalColumn,
    collections.namedtuple("KeyedCategoricalColumn", ("key", "dtype", "ev_option")),
):
    """See `categorical_column_with_embedding`."""

    @property
    def _is_v2_column(self):
        return True

    @property
    def name(self):
        return self.key

    @property
    def parents(self):
        return [self.key]

    @property
    def parse_example_spec(self):
        # tf.Example holds int64 and bytes alone.
        stored = tf.string if self.dtype == tf.string else tf.int64
        return {self.key: tf.io.VarLenFeature(stored)}

    @property
    def _parse_example_spec(self):
        return self.parse_example_spec

    @property
    def num_buckets(self):
        return Keys(self)

    @property
    def _num_buckets(self):
        return Keys(self)

    def transform_feature(self, transformation_cache, state_manager):
        return self._to_keys(transformation_cache.get(self.key, state_manager))

    def _transform_feature(self, inputs):
        return self._to_keys(inputs.get(self.key))

    def get_sparse_tensors(self, transformation_cache, state_manager):
        return self.IdWeightPair(transformation_cache.get(self, state_manager), None)

    def _get_sparse_tensors(self, inputs, weight_collections=None, trainable=None):
        del weight_collections, trainable
        return self.IdWeightPair(inputs.get(self), None)

    def get_config(self):
        return {
            "key": self.key,
            "dtype": self.dtype.name,
            "ev_option": option_to_config(self.ev_option),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None, columns_by_name=None):
        del custom_objects, columns_by_name
        return cls(
            config["key"], tf.as_dtype(config["dtype"]), option_from_config(config["ev_option"])
        )

    def _to_keys(self, values):
        given = fc_v2._to_sparse_input_and_drop_ignore_values(values)
        if self.dtype == tf.string:
            if given.dtype != tf.string:
                raise ValueError(f"column '{self.key}': expected strings, got {given.dtype.name}")
            keys = tf.strings.to_hash_bucket_fast(given.values, Keys.MOST)
        elif given.dtype.is_integer:
            keys = tf.cast(given.values, tf.int64)
        else:
            raise ValueError(f"column '{self.key}': expected integers, got {given.dtype.name}")
        return tf.SparseTensor(given.indices, keys, given.dense_shape)
