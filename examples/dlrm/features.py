"""Features, independent of how a library encodes them.

`columns.py` turns these into TensorFlow feature columns, `ids.py` into id tensors for Keras.
Each categorical feature is one embedding table; its name is also the table's.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class Numeric:
    """A number, brought near [-1, 1]: `(x - shift) / scale`, of the signed log of x if `log`."""

    name: str
    shift: float = 0.0
    scale: float = 1.0
    log: bool = False

    def scaled(self, values):
        if self.log:
            values = tf.sign(values) * tf.math.log1p(tf.abs(values))
        return tf.clip_by_value((values - self.shift) / self.scale, -5.0, 5.0)


@dataclass(frozen=True)
class Hashed:
    """Strings, hashed into `num_rows` rows; an empty string is no value."""

    name: str
    num_rows: int


@dataclass(frozen=True)
class Vocabulary:
    """Strings out of a known list; any other string is no value."""

    name: str
    words: tuple[str, ...]

    @property
    def num_rows(self):
        return len(self.words)


@dataclass(frozen=True)
class Identity:
    """Integers from 0 to `num_rows` - 1."""

    name: str
    num_rows: int


@dataclass(frozen=True)
class Bucketized:
    """The number `source`, told apart only by the boundaries it lies between."""

    name: str
    source: str
    boundaries: tuple[float, ...]

    @property
    def num_rows(self):
        return len(self.boundaries) + 1


@dataclass(frozen=True)
class Crossed:
    """Every combination of the values of other features, hashed into `num_rows` rows."""

    name: str
    of: tuple[Vocabulary | Identity | Bucketized, ...]
    num_rows: int


@dataclass(frozen=True)
class Schema:
    """The features of a data set: numbers for the bottom MLP, the rest for embedding tables.

    `open_ended` are those of `categorical` whose values have no end, as of users and items.
    """

    numeric: tuple[Numeric, ...]
    categorical: tuple[Hashed | Vocabulary | Identity | Bucketized | Crossed, ...]
    open_ended: tuple[Hashed | Identity, ...] = ()
