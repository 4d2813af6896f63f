"""Layers that read sequences: activation units, transformer blocks, HSTU blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.config import check_choice
from group_embedding.keras_compat import keras, policy_of
from group_embedding.recommender.zoo.arguments import Layer
from group_embedding.recommender.zoo.mlp import MLP


@keras.utils.register_keras_serializable(package="group_embedding")
class ActivationUnit(Layer):
    """The sum of a sequence's vectors, weighted by how each goes with a query: section 4.3 of Deep
    Interest Network, https://arxiv.org/abs/1706.06978.

    The weight of a key k is `MLP(q, k, q - k, q * k)`. As in the paper it is not normalised: the
    length of the sum says how strong the interest is.

    Example:

    >>> unit = ge.models.ActivationUnit([8])
    >>> unit(tf.ones([2, 4]), tf.ones([2, 5, 4]), tf.ones([2, 5], tf.bool)).shape
    TensorShape([2, 4])

    Args:
      units: units of the hidden layers of the MLP.
      activation: its activation: a name of Keras, or "dice".
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.

    Returns:
      Called on a query `[batch, dim]`, keys `[batch, length, dim]` and their mask
      `[batch, length]`: `[batch, dim]`.
    """

    def __init__(
        self, units: Sequence[int] = (80, 40), activation: str = "dice", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.hidden = MLP(units, activation, dtype=policy_of(self))
        self.weight = keras.layers.Dense(1, dtype=policy_of(self))

    def call(self, query: Any, keys: Any, mask: Any, training: Any = None) -> Any:
        queries = tf.broadcast_to(query[:, None], tf.shape(keys))
        queries = tf.ensure_shape(queries, [None, *keys.shape[1:]])
        pairs = tf.concat([queries, keys, queries - keys, queries * keys], axis=-1)
        weights = self.weight(self.hidden(pairs, training=training))[..., 0]
        weights = tf.where(mask, weights, tf.zeros_like(weights))
        return tf.einsum("bl,bld->bd", weights, keys)


@keras.utils.register_keras_serializable(package="group_embedding")
class SelfAttention(Layer):
    """Multi-head attention of a sequence to itself: section 3.2 of https://arxiv.org/abs/1706.03762.

    Example:

    >>> attention = ge.models.SelfAttention(num_heads=2, causal=True)
    >>> attention(tf.ones([2, 5, 4]), tf.ones([2, 5], tf.bool)).shape
    TensorShape([2, 5, 4])

    Args:
      num_heads: how many heads; it divides the width of the vectors.
      causal: whether a position sees itself and earlier ones alone.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.

    Returns:
      Called on vectors `[batch, length, dim]` and their mask `[batch, length]`: vectors of the same
      shape.

    Raises:
      ValueError: num_heads does not divide dim.
    """

    def __init__(self, num_heads: int = 1, causal: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads, self.causal = num_heads, causal

    def build(self, input_shape: Any, *_: Any) -> None:
        dim = input_shape[-1]
        check_heads(self.name, dim, self.num_heads)
        self.query, self.key, self.value, self.output_layer = (
            keras.layers.Dense(dim, dtype=policy_of(self)) for _ in range(4)
        )
        for layer in (self.query, self.key, self.value, self.output_layer):
            layer.build(tuple(input_shape))
        self.built = True

    def call(self, x: Any, mask: Any) -> Any:
        length, dim = x.shape[1:]
        shape = [-1, length, self.num_heads, dim // self.num_heads]
        query, key, value = (
            tf.reshape(layer(x), shape) for layer in (self.query, self.key, self.value)
        )
        scores = tf.einsum("bqhd,bkhd->bhqk", query, key) / (dim // self.num_heads) ** 0.5
        # The largest float16 is 65,504.
        least = tf.constant(-6e4, scores.dtype)
        scores = tf.where(visible(mask, self.causal)[:, None], scores, least)
        seen = tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), value)
        return self.output_layer(tf.reshape(seen, [-1, length, dim]))


@keras.utils.register_keras_serializable(package="group_embedding")
class TransformerBlock(Layer):
    """Self-attention, then two dense layers at each position; each is added to its input.

    With norm "post", `x = LayerNorm(x + f(x))`, as in BST; with "pre", `x = x + f(LayerNorm(x))`,
    as in SASRec. Dropout is behind each f.

    Example:

    >>> block = ge.models.TransformerBlock(num_heads=2, hidden=8)
    >>> block(tf.ones([2, 5, 4]), tf.ones([2, 5], tf.bool)).shape
    TensorShape([2, 5, 4])

    Args:
      num_heads, causal: As in `SelfAttention`.
      hidden: units of the first dense layer.
      norm: "post" or "pre".
      activation: that of the first dense layer, a name of Keras.
      dropout: the share of outputs that are dropped in training.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.
    """

    def __init__(
        self,
        num_heads: int = 1,
        hidden: int = 64,
        norm: str = "post",
        causal: bool = False,
        activation: str = "relu",
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice(f"layer '{self.name}'", "norm", norm, ("post", "pre"))
        policy, self._is_post = policy_of(self), norm == "post"
        self.attention = SelfAttention(num_heads, causal, dtype=policy)
        self.hidden = keras.layers.Dense(hidden, activation, dtype=policy)
        self.norms = [keras.layers.LayerNormalization(epsilon=1e-6, dtype=policy) for _ in range(2)]
        self.drop = keras.layers.Dropout(dropout, dtype=policy)

    def build(self, input_shape: Any, *_: Any) -> None:
        shape = tuple(input_shape)
        self.attention.build(shape)
        self.hidden.build(shape)
        self.last = keras.layers.Dense(shape[-1], dtype=policy_of(self))
        self.last.build((*shape[:-1], self.hidden.units))
        for norm in self.norms:
            norm.build(shape)
        self.built = True

    def call(self, x: Any, mask: Any, training: Any = None) -> Any:
        def attend(x):
            return self.attention(x, mask)

        def feed_forward(x):
            return self.last(self.hidden(x))

        for norm, layer in zip(self.norms, (attend, feed_forward)):
            if self._is_post:
                x = norm(x + self.drop(layer(x), training=training))
            else:
                x = x + self.drop(layer(norm(x)), training=training)
        return x


@keras.utils.register_keras_serializable(package="group_embedding")
class HSTUBlock(Layer):
    """A block of hierarchical sequential transduction units: equations 1 to 3 of
    https://arxiv.org/abs/2402.17152, with a bias of relative positions.

    `U, V, Q, K = silu(f(LayerNorm(x)))`, `A = silu(Q K^T + bias) / length`, and
    `y = x + g(LayerNorm(A V) * U)`: attention without a softmax.

    Example:

    >>> block = ge.models.HSTUBlock(num_heads=2)
    >>> block(tf.ones([2, 5, 4]), tf.ones([2, 5], tf.bool)).shape
    TensorShape([2, 5, 4])

    Args:
      num_heads: how many heads; it divides the width of the vectors.
      dropout: the share of outputs that are dropped in training.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.

    Returns:
      Called on vectors `[batch, length, dim]` and their mask `[batch, length]`: vectors of the same
      shape. A position sees itself and earlier ones.

    Raises:
      ValueError: num_heads does not divide dim.
    """

    def __init__(self, num_heads: int = 1, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.norms = [
            keras.layers.LayerNormalization(epsilon=1e-6, dtype=policy_of(self)) for _ in range(2)
        ]
        self.drop = keras.layers.Dropout(dropout, dtype=policy_of(self))

    def build(self, input_shape: Any, *_: Any) -> None:
        shape = tuple(input_shape)
        length, dim = shape[1:]
        check_heads(self.name, dim, self.num_heads)
        self.split = keras.layers.Dense(4 * dim, "silu", dtype=policy_of(self))
        self.last = keras.layers.Dense(dim, dtype=policy_of(self))
        for layer in (self.split, self.last, *self.norms):
            layer.build(shape)
        # One number for a key 0, 1, 2, ... positions before the query.
        self.bias = self.add_weight(name="bias", shape=(length,), initializer="zeros")
        self.built = True

    def call(self, x: Any, mask: Any, training: Any = None) -> Any:
        length, dim = x.shape[1:]
        shape = [-1, length, self.num_heads, dim // self.num_heads]
        gate, *of_heads = tf.split(self.split(self.norms[0](x)), 4, axis=-1)
        value, query, key = (tf.reshape(tensor, shape) for tensor in of_heads)
        positions = np.arange(length)
        distances = np.maximum(positions[:, None] - positions, 0)
        bias = tf.gather(tf.cast(self.bias, x.dtype), distances)
        weights = tf.nn.silu(tf.einsum("bqhd,bkhd->bhqk", query, key) + bias) / length
        weights = tf.where(visible(mask, True)[:, None], weights, tf.zeros_like(weights))
        seen = tf.reshape(tf.einsum("bhqk,bkhd->bqhd", weights, value), [-1, length, dim])
        return x + self.drop(self.last(self.norms[1](seen) * gate), training=training)


def visible(mask, causal):
    """bool [batch, queries, keys]: which keys a query sees."""
    length = mask.shape[1]
    if not causal:
        return tf.repeat(mask[:, None], length, axis=1)
    return mask[:, None] & tf.constant(np.tri(length, dtype=bool))


def check_heads(name, dim, num_heads):
    """Raises ValueError if the heads cannot share the vectors."""
    if num_heads < 1 or dim % num_heads:
        raise ValueError(
            f"layer '{name}': expected num_heads to divide the width {dim}, got {num_heads}"
        )
