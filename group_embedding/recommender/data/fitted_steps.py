"""Steps of preprocessing whose values come from data: vocabularies, means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.recommender.data.key_counts import KeyCounts
from group_embedding.recommender.data.steps import Step, fingerprint


class Categorify(Step):
    """Ids by frequency, int64: 1 for the most frequent value, and 0 for values that are rare,
    unknown or missing. Values that are equally frequent are in ascending order.

    Example:

    >>> step = ge.data.Categorify("word", min_count=2)
    >>> data = {"word": tf.constant(["b", "a", "b", "c", "a", "b"])}
    >>> pipeline = ge.data.Pipeline([step]).fit([data])
    >>> pipeline(data)["word"].numpy(), step.num_ids
    (array([1, 2, 1, 0, 2, 1]), 3)

    Args:
        inputs: A feature of integers or strings, or several that share one vocabulary.
        min_count: Rarer values have id 0.
        max_size: How many values the vocabulary has at most, the most frequent ones; None: all.
        missing: The value that stands for a missing one, which has id 0.
        output: The feature that is written; None: the input.
        max_counted: Values that are counted at a time. Counts are exact while there are no more;
            beyond, the rarest are dropped, and counted anew when they come again.
    """

    def __init__(
        self,
        inputs: str | Sequence[str],
        min_count: int = 1,
        max_size: int | None = None,
        missing: int | str | None = None,
        output: str | None = None,
        max_counted: int = 20_000_000,
    ) -> None:
        super().__init__(inputs, output)
        if min_count < 1 or (max_size is not None and max_size < 1):
            raise ValueError(
                f"Categorify: expected min_count and max_size of 1 or more, got {min_count} and "
                f"{max_size}"
            )
        self.min_count, self.max_size, self.missing = int(min_count), max_size, missing
        self.max_counted, self.fitted = max_counted, False

    def start(self) -> None:
        """Begins to count."""
        self._counts: KeyCounts | None = KeyCounts(self.max_counted, "frequent")

    def update(self, values: np.ndarray, name: str) -> None:
        """Counts an array of the values of a feature."""
        if values.dtype.kind not in "iuO":
            self._refuse(tf.convert_to_tensor(values), name, "integers or strings")
        if values.size:
            self._counts.add(values.reshape(-1))

    def finish(self) -> None:
        """Makes the vocabulary."""
        keys, counts = self._counts.sampled()
        missing = self.missing.encode() if isinstance(self.missing, str) else self.missing
        good = counts >= self.min_count
        if missing is not None:
            good &= keys != missing
        keys, counts = keys[good], counts[good]
        ascending = np.argsort(keys, kind="stable")
        order = ascending[np.argsort(-counts[ascending], kind="stable")]
        self._counts = None
        self._set_vocabulary(keys[order][: self.max_size])

    @property
    def vocabulary(self) -> list:
        """The values of ids 1, 2, and so on: integers or bytes."""
        return self._vocabulary.tolist()

    def _set_vocabulary(self, keys):
        self._vocabulary, self.num_ids, self.fitted = keys, len(keys) + 1, True
        self._is_text = keys.dtype == object
        numbers = keys.astype(np.int64) if not self._is_text else np.zeros(0, np.int64)
        if self._is_text:
            with tf.init_scope():
                numbers = fingerprint(self, tf.constant(keys, tf.string), "").numpy()
        order = np.argsort(numbers)
        if len(np.unique(numbers)) < len(numbers):
            raise ValueError(
                f"Categorify of '{self.inputs[0]}': expected different hashes of all values, got "
                "two that are equal; leave one of the values out"
            )
        self._set_table(numbers[order], order + 1)

    def _set_table(self, sorted_keys, ids):
        # Behind the last key is one whose id is 0: a key beyond all others is found there.
        keys = np.concatenate([sorted_keys, [np.iinfo(np.int64).max]]).astype(np.int64)
        ids = np.concatenate([ids, [0]]).astype(np.int64)
        with tf.init_scope():
            self.keys = tf.Variable(keys, trainable=False, name="keys")
            self.ids = tf.Variable(ids, trainable=False, name="ids")

    def convert(self, values: tf.Tensor, name: str) -> tf.Tensor:
        if len(self._vocabulary) and (values.dtype == tf.string) != self._is_text:
            self._refuse(values, name, "strings" if self._is_text else "integers")
        numbers = tf.reshape(fingerprint(self, values, name), [-1])
        found = tf.searchsorted(self.keys, numbers)
        fits = tf.equal(tf.gather(self.keys, found), numbers)
        ids = tf.where(fits, tf.gather(self.ids, found), tf.zeros_like(numbers))
        return tf.reshape(ids, tf.shape(values))

    def save_values(self, path: str) -> dict[str, Any]:
        """Writes the vocabulary, a line for each value: integers, or strings of JSON."""
        with open(path + ".vocabulary", "w") as file:
            for key in self.vocabulary:
                text = key.decode("utf-8", "surrogateescape") if self._is_text else key
                file.write(json.dumps(text) + "\n")
        return {"is_text": bool(self._is_text)}

    def load_values(self, path: str, values: dict[str, Any]) -> None:
        with open(path + ".vocabulary") as file:
            keys = [json.loads(line) for line in file]
        if values["is_text"]:
            keys = [key.encode("utf-8", "surrogateescape") for key in keys]
            array = np.empty(len(keys), object)
            array[:] = keys
        else:
            array = np.array(keys, np.int64)
        self._set_vocabulary(array)


class Standardize(Step):
    """(x - mean) / standard deviation of numbers. Missing ones (NaN) are left out of both, and
    stay.

    Example:

    >>> data = {"age": tf.constant([1.0, 3.0])}
    >>> ge.data.Pipeline([ge.data.Standardize("age")]).fit([data])(data)["age"].numpy()
    array([-1.,  1.], dtype=float32)

    Args:
        inputs: A feature, or several, each with its own mean.
        output: The feature that is written; None: the input.
    """

    def __init__(self, inputs: str | Sequence[str], output: str | None = None) -> None:
        super().__init__(inputs, output)
        self.fitted, self.values = False, {}

    def start(self) -> None:
        self._sums = dict.fromkeys(self.inputs, (0, 0.0, 0.0))

    def update(self, values: np.ndarray, name: str) -> None:
        if values.dtype.kind not in "iuf":
            self._refuse(tf.convert_to_tensor(values), name, "numbers")
        values = values.astype(np.float64).reshape(-1)
        values = values[~np.isnan(values)]
        if not len(values):
            return
        # Joined by Chan's rule: a sum of squares loses digits where the mean is large.
        count, mean, square = self._sums[name]
        new, total = values.mean(), count + len(values)
        square += np.square(values - new).sum() + (new - mean) ** 2 * count * len(values) / total
        self._sums[name] = (total, mean + (new - mean) * len(values) / total, square)

    def finish(self) -> None:
        self.values = {}
        for name, (count, mean, square) in self._sums.items():
            deviation = float(np.sqrt(square / count)) if count else 1.0
            self.values[name] = [float(mean), deviation or 1.0]
        self.fitted = True

    def convert(self, values: tf.Tensor, name: str) -> tf.Tensor:
        mean, deviation = self.values[name]
        return (self._floats(values, name) - mean) / deviation

    def save_values(self, path: str) -> dict[str, Any]:
        return {"values": {name: list(pair) for name, pair in self.values.items()}}

    def load_values(self, path: str, values: dict[str, Any]) -> None:
        self.values, self.fitted = values["values"], True
