"""An initializer of TensorFlow or Keras -> what the rows of keys start as."""

import inspect
import math
import zlib
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import random_seed

# A table has no number of rows for VarianceScaling to count: it counts those of the default matrix.
_FAN_ROWS = 4096
# The standard deviation of a normal distribution cut off at two of its own.
_TRUNCATED_STDDEV = 0.87962566103423978


class InitialValues(NamedTuple):
    """The fields of InitialValues in cc/table/initial_values.h. `matrix`: [rows, dim], without rows
    unless `distribution` is 'matrix'."""

    matrix: Any
    distribution: str
    a: float = 0.0
    b: float = 0.0
    seed: int = 0


def make_initial_values(name, initializer, rows, dim, dtype):
    """The InitialValues of a table.

    Args:
        name: of the table, for messages.
        initializer: a callable of shape and dtype, its class, or a value of shape [rows, dim].
        rows: of a matrix that is drawn once; None: every key draws for itself.
        dim, dtype: of the table.

    Raises:
        ValueError: an initializer that does not give such values.
    """
    if rows is None:
        return _per_key(name, initializer, dim, dtype)
    return _drawn_once(name, initializer, rows, dim, dtype)


def _drawn_once(name, initializer, rows, dim, dtype):
    """A matrix of which key k starts as row `k % rows`."""
    initializer = initializer() if inspect.isclass(initializer) else initializer
    shape = [rows, dim]
    if callable(initializer):
        matrix = tf.convert_to_tensor(initializer(shape, dtype=dtype))
    else:
        matrix = tf.convert_to_tensor(initializer)
    matrix = tf.cast(matrix, dtype)
    if matrix.shape.as_list() != shape:
        raise ValueError(
            f"table '{name}': expected initial values of shape {shape}, which is "
            f"[default_value_dim, embedding_dim], got {matrix.shape}"
        )
    return InitialValues(matrix, "matrix")


def _per_key(name, initializer, dim, dtype):
    """Values that every key draws for itself, of a distribution that the table can draw."""
    initializer = initializer() if inspect.isclass(initializer) else initializer
    kinds = [base.__name__ for base in type(initializer).__mro__]
    read = next((_READERS[kind] for kind in kinds if kind in _READERS), None)
    if read is None:
        raise ValueError(
            f"table '{name}': with default_value_dim=None, expected an initializer that is one of "
            f"{', '.join(_READERS)} (of TensorFlow 1, TensorFlow 2 or Keras), got {initializer!r}; "
            "others can draw a matrix: default_value_dim=4096"
        )
    distribution, a, b = read(name, initializer, dim)
    seed = 0 if distribution == "constant" else _seed_of(name, initializer)
    return InitialValues(tf.zeros([0, dim], dtype), distribution, float(a), float(b), seed)


def _constant(name, initializer, dim):
    value = initializer.value
    if getattr(value, "shape", ()) != () or isinstance(value, (list, tuple)):
        raise ValueError(
            f"table '{name}': with default_value_dim=None, expected a Constant of one number, got "
            f"{value!r}"
        )
    return "constant", value, 0


def _variance_scaling(name, initializer, dim):
    fans = {"fan_in": _FAN_ROWS, "fan_out": dim, "fan_avg": (_FAN_ROWS + dim) / 2}
    variance = initializer.scale / max(1.0, fans[initializer.mode])
    if initializer.distribution == "uniform":
        limit = math.sqrt(3 * variance)
        return "uniform", -limit, limit
    if initializer.distribution == "untruncated_normal":
        return "normal", 0, math.sqrt(variance)
    return "truncated_normal", 0, math.sqrt(variance) / _TRUNCATED_STDDEV


# By the name of the class, or of one that it derives from.
_READERS = {
    "Zeros": lambda name, initializer, dim: ("constant", 0, 0),
    "Ones": lambda name, initializer, dim: ("constant", 1, 0),
    "Constant": _constant,
    "RandomUniform": lambda name, i, dim: (
        "uniform",
        i.minval,
        1 if i.maxval is None else i.maxval,
    ),
    "RandomNormal": lambda name, i, dim: ("normal", i.mean, i.stddev),
    "TruncatedNormal": lambda name, i, dim: ("truncated_normal", i.mean, i.stddev),
    "VarianceScaling": _variance_scaling,
}


def _seed_of(name, initializer):
    """Its own seed, or one made of TensorFlow's, or, if there is none, of the table's name:
    a process that is started again draws the same values for keys that are still to come."""
    seed = getattr(initializer, "seed", None)
    if isinstance(seed, int):
        return seed
    seeds = random_seed.get_seed(None)
    if seeds == (None, None) or seeds[0] is None:
        return zlib.crc32(name.encode())
    return (seeds[0] << 31 ^ (seeds[1] or 0)) & (2**62 - 1)
