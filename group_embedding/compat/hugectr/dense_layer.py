"""`DenseLayer`: what every dense layer of HugeCTR is, and the initial values of its weights."""

from __future__ import annotations

from typing import Any

from group_embedding.compat.hugectr.fields import Fields
from group_embedding.keras_compat import keras

_INITIALIZERS = {
    "Uniform": lambda: keras.initializers.RandomUniform(-0.05, 0.05),
    "XavierNorm": lambda: keras.initializers.GlorotNormal(),
    "XavierUniform": lambda: keras.initializers.GlorotUniform(),
    "Zero": lambda: keras.initializers.Zeros(),
}


class DenseLayer(keras.layers.Layer):
    """One layer of the network; `weights_in_order` is how HugeCTR's dense model file has them."""

    def __init__(self, fields: Fields, name: str) -> None:
        super().__init__(name=name)
        self._read(fields)

    def _read(self, fields):
        """Takes the layer's own keys."""

    @property
    def weights_in_order(self) -> list[Any]:
        """The trained variables, in the order of HugeCTR's file."""
        return list(self.trainable_variables)


def initializer_of(fields, key, default):
    """A function that makes the initializer that a key names: one for each variable, as two of one
    initializer would start alike."""
    word = fields.take(key, str, None)
    if word is None:
        return default if callable(default) else lambda: keras.initializers.get(default)
    if word not in _INITIALIZERS:
        raise ValueError(
            f"{fields.owner}: expected {key} one of {', '.join(_INITIALIZERS)}, got {word!r}"
        )
    return _INITIALIZERS[word]


def only(layer, bottoms):
    if len(bottoms) != 1:
        raise ValueError(
            f"layer '{layer.name}' ({type(layer).__name__}): expected one bottom, got "
            f"{len(bottoms)}"
        )
    return bottoms[0]
