"""The integers that are keys of a table, and those of other types that are keys too."""

import tensorflow as tf

KEY_DTYPES = (tf.int32, tf.int64, tf.uint32, tf.uint64)


def are_keys(dtype, key_dtype):
    """Returns whether each value of an integer type is one of `key_dtype`."""
    dtype, key_dtype = tf.as_dtype(dtype), tf.as_dtype(key_dtype)
    return dtype.is_integer and key_dtype.min <= dtype.min and dtype.max <= key_dtype.max


def to_keys(ids, key_dtype):
    """Integers as a tensor of `key_dtype`, if all values of their type are keys; else they are
    refused as `tf.convert_to_tensor` refuses them."""
    if tf.is_tensor(ids) and are_keys(ids.dtype, key_dtype):
        return tf.cast(ids, key_dtype)
    return tf.convert_to_tensor(ids, key_dtype)


def widened(ids, key_dtype):
    """Ids (a tensor, SparseTensor or RaggedTensor) cast to the type of keys, if all values of their
    type are keys; else as they are."""
    dtype = getattr(ids, "dtype", None)
    if dtype is None or dtype == key_dtype or not are_keys(dtype, key_dtype):
        return ids
    return tf.cast(ids, key_dtype)
