"""Steps of preprocessing without anything to fit: TensorFlow ops from features to features."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Step(tf.Module):
    """One step of a `Pipeline`: the base of all steps.

    Attributes:
      inputs: The names of the features that it reads.
      outputs: The names of the features that it writes.
    """

    def __init__(self, inputs, output):
        super().__init__()
        inputs = [inputs] if isinstance(inputs, str) else list(inputs)
        if not inputs or not all(isinstance(name, str) for name in inputs):
            raise ValueError(f"{type(self).__name__}: expected names of features, got {inputs!r}")
        if output is not None and len(inputs) > 1:
            raise ValueError(
                f"{type(self).__name__}: expected output of one feature alone, got {inputs!r}"
            )
        self.inputs = tuple(inputs)
        self.outputs = self.inputs if output is None else (output,)

    fitted = True  # whether its values are known; those of some steps come from data
    num_ids: int | None = None  # the ids of the outputs are 0 to num_ids - 1; None: they are no ids

    def __call__(self, features):
        """The features with the outputs."""
        outputs = {
            output: _map_values(
                lambda values, name=name: self.convert(values, name), features[name]
            )
            for name, output in zip(self.inputs, self.outputs)
        }
        return {**features, **outputs}

    def convert(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """A Tensor of a feature's values, converted."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain values."""
        output = None if self.outputs == self.inputs else self.outputs[0]
        values = {"inputs": list(self.inputs), "output": output, "size": self.num_ids}
        values = {**vars(self), **values}
        return {name: values[name] for name in inspect.signature(type(self)).parameters}

    def _refuse(self, values, name, kinds):
        raise ValueError(
            f"{type(self).__name__} of feature '{name}': expected {kinds}, got {values.dtype.name}"
        )

    def _floats(self, values, name):
        if not (values.dtype.is_floating or values.dtype.is_integer):
            self._refuse(values, name, "numbers")
        return tf.cast(values, tf.float32)


def _map_values(function, values):
    if isinstance(values, tf.RaggedTensor):
        return values.with_flat_values(function(values.flat_values))
    if isinstance(values, tf.SparseTensor):
        return tf.SparseTensor(values.indices, function(values.values), values.dense_shape)
    return function(tf.convert_to_tensor(values))


class Log(Step):
    """log(x + 1) of numbers; those below 0 count as 0. Missing ones (NaN) stay.

    Example:

    >>> ge.data.Log("price")({"price": tf.constant([0.0, -1.0])})["price"].numpy()
    array([0., 0.], dtype=float32)

    Args:
        inputs: A feature, or several.
        output: The feature that is written; None: the input.
    """

    def __init__(self, inputs: str | Sequence[str], output: str | None = None) -> None:
        super().__init__(inputs, output)

    def convert(self, values: tf.Tensor, name: str) -> tf.Tensor:
        values = self._floats(values, name)
        return tf.where(values < 0, tf.zeros_like(values), tf.math.log1p(values))


class Clip(Step):
    """Numbers kept within a range. Missing ones (NaN) stay.

    Example:

    >>> ge.data.Clip("age", 0, 99)({"age": tf.constant([-4.0, 120.0])})["age"].numpy()
    array([ 0., 99.], dtype=float32)

    Args:
        inputs: A feature, or several.
        least, most: The range; None: no bound.
        output: The feature that is written; None: the input.
    """

    def __init__(
        self,
        inputs: str | Sequence[str],
        least: float | None = None,
        most: float | None = None,
        output: str | None = None,
    ) -> None:
        super().__init__(inputs, output)
        if least is not None and most is not None and least > most:
            raise ValueError(f"Clip: expected least <= most, got {least} and {most}")
        self.least, self.most = least, most

    def convert(self, values: tf.Tensor, name: str) -> tf.Tensor:
        values = self._floats(values, name)
        if self.least is not None:
            values = tf.where(values < self.least, tf.constant(self.least, tf.float32), values)
        if self.most is not None:
            values = tf.where(values > self.most, tf.constant(self.most, tf.float32), values)
        return values


class FillMissing(Step):
    """A number in place of missing ones, which are NaN.

    Example:

    >>> step = ge.data.FillMissing("age", 30)
    >>> step({"age": tf.constant([float("nan"), 4.0])})["age"].numpy()
    array([30.,  4.], dtype=float32)

    Args:
        inputs: A feature, or several.
        value: The number.
        output: The feature that is written; None: the input.
    """

    def __init__(
        self, inputs: str | Sequence[str], value: float = 0.0, output: str | None = None
    ) -> None:
        super().__init__(inputs, output)
        self.value = float(value)

    def convert(self, values: tf.Tensor, name: str) -> tf.Tensor:
        values = self._floats(values, name)
        return tf.where(tf.math.is_nan(values), tf.constant(self.value, tf.float32), values)


class Bucketize(Step):
    """The number of boundaries that are not above a number, int64: an id. A missing one (NaN) has
    id 0.

    Example:

    >>> step = ge.data.Bucketize("age", [18, 65])
    >>> step({"age": tf.constant([17.0, 18.0, 70.0])})["age"].numpy()
    array([0, 1, 2])

    Args:
        inputs: A feature, or several.
        boundaries: Numbers in ascending order.
        output: The feature that is written; None: the input.
    """

    def __init__(
        self, inputs: str | Sequence[str], boundaries: Sequence[float], output: str | None = None
    ) -> None:
        super().__init__(inputs, output)
        self.boundaries = [float(boundary) for boundary in boundaries]
        ordered = all(a < b for a, b in zip(self.boundaries, self.boundaries[1:]))
        if not self.boundaries or not ordered or not all(map(math.isfinite, self.boundaries)):
            raise ValueError(f"Bucketize: expected ascending boundaries, got {boundaries!r}")
        self.num_ids = len(self.boundaries) + 1

    def convert(self, values: tf.Tensor, name: str) -> tf.Tensor:
        values = self._floats(values, name)
        boundaries = tf.constant(self.boundaries, tf.float32)
        ids = tf.searchsorted(boundaries, tf.reshape(values, [-1]), "right", tf.int64)
        ids = tf.reshape(ids, tf.shape(values))
        return tf.where(tf.math.is_nan(values), tf.zeros_like(ids), ids)


class Hash(Step):
    """Ids 0 to `size - 1`, int64, by a hash of integers or strings.

    Example:

    >>> ids = ge.data.Hash("word", 10)({"word": tf.constant(["a", "b", "a"])})["word"].numpy()
    >>> bool(ids[0] == ids[2])
    True

    Args:
        inputs: A feature, or several.
        size: How many ids there are.
        output: The feature that is written; None: the input.
        seed: Another seed is another hash.
    """

    def __init__(
        self,
        inputs: str | Sequence[str],
        size: int,
        output: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(inputs, output)
        self.num_ids, self.seed = _check_size(self, size), int(seed)

    def convert(self, values: tf.Tensor, name: str) -> tf.Tensor:
        return _to_ids(mix(fingerprint(self, values, name), self.seed), self.num_ids)


class Cross(Step):
    """Ids 0 to `size - 1`, int64, by a hash of the values of several features together, each of one
    value a row.

    Example:

    >>> step = ge.data.Cross(["country", "device"], 1000, "country_device")
    >>> step({"country": tf.constant([1, 1]), "device": tf.constant(["a", "b"])}).keys()
    dict_keys(['country', 'device', 'country_device'])

    Args:
        inputs: Two features or more, integers or strings.
        size: How many ids there are.
        output: The feature that is written.
        seed: Another seed is another hash.
    """

    def __init__(self, inputs: Sequence[str], size: int, output: str, seed: int = 0) -> None:
        super().__init__(inputs, None)
        if len(self.inputs) < 2 or not isinstance(output, str):
            raise ValueError(
                f"Cross: expected two features or more, and an output, got {inputs!r}, {output!r}"
            )
        self.outputs, self.num_ids, self.seed = (output,), _check_size(self, size), int(seed)

    def __call__(self, features):
        mixed = None
        for name in self.inputs:
            values = features[name]
            if isinstance(values, (tf.RaggedTensor, tf.SparseTensor)):
                raise ValueError(f"Cross of feature '{name}': expected one value a row, got lists")
            number = fingerprint(self, tf.convert_to_tensor(values), name)
            mixed = mix(number if mixed is None else mixed * 31 + number, self.seed)
        return {**features, self.outputs[0]: _to_ids(mixed, self.num_ids)}


def fingerprint(step, values, name):
    """int64 of integers, or of strings a hash of 63 bits."""
    if values.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(values, 2**63 - 1)
    if not values.dtype.is_integer:
        step._refuse(values, name, "integers or strings")
    return tf.cast(values, tf.int64)


def mix(numbers, seed):
    """int64 of which all bits depend on all bits of int64: splitmix64's function."""
    x = tf.bitcast(numbers, tf.uint64)
    x += tf.constant((0x9E3779B97F4A7C15 * (seed + 1)) % 2**64, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        shifted = tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64))
        x = tf.bitwise.bitwise_xor(x, shifted) * tf.constant(factor, tf.uint64)
    shifted = tf.bitwise.right_shift(x, tf.constant(31, tf.uint64))
    return tf.bitcast(tf.bitwise.bitwise_xor(x, shifted), tf.int64)


def _to_ids(mixed, size):
    return tf.bitwise.bitwise_and(mixed, tf.constant(2**63 - 1, tf.int64)) % size


def _check_size(step: Any, size: int) -> int:
    if int(size) != size or size < 1:
        raise ValueError(f"{type(step).__name__}: expected a size of 1 or more, got {size!r}")
    return int(size)
