"""The integers that are keys of a table, and those of other types that are keys too."""

import functools
import numbers

import numpy as np
import tensorflow as tf

KEY_DTYPES = (tf.int32, tf.int64, tf.uint32, tf.uint64)


def are_keys(dtype, key_dtype):
    """Returns whether each value of an integer type is one of `key_dtype`."""
    dtype, key_dtype = tf.as_dtype(dtype), tf.as_dtype(key_dtype)
    return dtype.is_integer and key_dtype.min <= dtype.min and dtype.max <= key_dtype.max


def to_keys(ids, key_dtype, owner):
    """Integers as a tensor of `key_dtype`.

    Args:
        ids: a tensor, or anything that TensorFlow converts to one.
        key_dtype: one of KEY_DTYPES.
        owner: whose keys they are, for messages.

    Raises:
        ValueError: a tensor of a type that has other values, or a number of Python or NumPy that is
            no key.
        TypeError, ValueError: what is no number, as `tf.convert_to_tensor` refuses it.
    """
    if tf.is_tensor(ids):
        if not are_keys(ids.dtype, key_dtype):
            raise ValueError(
                f"{owner}: expected keys of {key_dtype.name}, or of a type whose values all are "
                f"such keys, got a tensor of {ids.dtype.name}; cast it if its values are"
            )
        return tf.cast(ids, key_dtype)
    _check_numbers(ids, key_dtype, owner)
    return tf.convert_to_tensor(ids, key_dtype)


def to_int64(values, owner, argument):
    """Integers that are no keys, such as steps, as a tensor of int64.

    Raises:
        ValueError: values that are no integers; the message names `owner` and `argument`.
    """
    tensor = tf.convert_to_tensor(values)
    is_empty = tensor.shape.num_elements() == 0  # of which a list has no type
    if not tensor.dtype.is_integer and not is_empty:
        raise ValueError(
            f"{owner}: expected {argument} to be integers, got values of {tensor.dtype.name}"
        )
    return tf.cast(tensor, tf.int64)


def _check_numbers(ids, key_dtype, owner):
    """Refuses numbers which `tf.convert_to_tensor` would cast to other ones."""
    least, most = _limits(key_dtype)
    array = _as_array(ids)
    if array is None or array.dtype.kind in "iu" and _is_within(array, least, most):
        return
    for number in array.ravel().tolist():
        if isinstance(number, numbers.Real) and not _is_integer(number, least, most):
            raise ValueError(
                f"{owner}: expected keys of {key_dtype.name}, {least} to {most}, got {number}; "
                "leave it out, or make the table with a key_dtype that has it"
            )


@functools.cache
def _limits(key_dtype):
    return int(key_dtype.min), int(key_dtype.max)


def _as_array(ids):
    """Numbers of Python or NumPy as an array, Python's as they are; None: something else, such as
    a list with tensors of a graph."""
    try:
        array = np.asarray(ids)
        is_rounded = array.dtype.kind == "f" and isinstance(ids, (list, tuple))
        return np.asarray(ids, object) if is_rounded else array
    except (NotImplementedError, TypeError, ValueError):
        return None


def _is_within(array, least, most):
    return array.size == 0 or (least <= int(array.min()) and int(array.max()) <= most)


def _is_integer(number, least, most):
    return least <= number <= most and number == int(number)


def widened(ids, key_dtype):
    """Ids (a tensor, SparseTensor or RaggedTensor) cast to the type of keys, if all values of their
    type are keys; else as they are."""
    dtype = getattr(ids, "dtype", None)
    if dtype is None or dtype == key_dtype or not are_keys(dtype, key_dtype):
        return ids
    return tf.cast(ids, key_dtype)
