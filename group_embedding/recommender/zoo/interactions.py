"""Layers in which features meet: dot products, crosses, factorization machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.recommender.zoo.arguments import Layer


@keras.utils.register_keras_serializable(package="group_embedding")
class DotInteraction(Layer):
    """The dot products of all pairs of vectors, as in DLRM: https://arxiv.org/abs/1906.00091.

    Example:

    >>> ge.models.DotInteraction()(tf.constant([[[1., 2.], [3., 4.], [0., 1.]]])).numpy().tolist()
    [[11.0, 2.0, 4.0]]

    Args:
      self_interaction: whether a vector meets itself, too.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.

    Returns:
      Called on `[batch, features, dim]`: `[batch, pairs]`, pairs (1, 0), (2, 0), (2, 1), ...
    """

    def __init__(self, self_interaction: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.self_interaction = self_interaction

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, x: Any) -> Any:
        count = x.shape[1]
        products = tf.matmul(x, x, transpose_b=True)
        rows, columns = np.tril_indices(count, 0 if self.self_interaction else -1)
        flat = tf.reshape(products, [-1, count * count])
        return tf.gather(flat, rows * count + columns, axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        count = input_shape[1]
        pairs = count * (count + (1 if self.self_interaction else -1)) // 2
        return (input_shape[0], pairs)


@keras.utils.register_keras_serializable(package="group_embedding")
class CrossNetwork(Layer):
    """The cross network of DCN-V2, section 3.2 of https://arxiv.org/abs/2008.13535.

    `x[l + 1] = x[0] * (W[l] x[l] + b[l]) + x[l]`; with a rank, `W[l] = U[l] V[l]`.

    Example:

    >>> ge.models.CrossNetwork(2)(tf.zeros([4, 6])).shape
    TensorShape([4, 6])

    Args:
      num_layers: how many crosses.
      rank: of W; None: W is a whole matrix.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.
    """

    def __init__(self, num_layers: int = 3, rank: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_layers, self.rank = num_layers, rank

    def build(self, input_shape: Any) -> None:
        width = input_shape[-1]
        shapes = [(width, width)] if self.rank is None else [(width, self.rank), (self.rank, width)]
        self.kernels, self.biases = [], []
        for i in range(self.num_layers):
            of_layer = [
                self.add_weight(name=f"kernel_{i}_{k}", shape=s, initializer="glorot_uniform")
                for k, s in enumerate(shapes)
            ]
            self.kernels.append(of_layer)
            bias = self.add_weight(name=f"bias_{i}", shape=(width,), initializer="zeros")
            self.biases.append(bias)
        self.built = True

    def call(self, x: Any) -> Any:
        first = x
        for kernels, bias in zip(self.kernels, self.biases):
            product = x
            for kernel in kernels:
                product = tf.matmul(product, kernel)
            x = first * (product + bias) + x
        return x

    def compute_output_shape(self, input_shape: Any) -> Any:
        return tuple(input_shape)


@keras.utils.register_keras_serializable(package="group_embedding")
class FactorizationMachine(Layer):
    """The sum of the dot products of all pairs of vectors: equation 2 of DeepFM,
    https://arxiv.org/abs/1703.04247, in linear time (Rendle, Factorization Machines, lemma 3.1).

    Example:

    >>> vectors = tf.constant([[[1., 2.], [3., 4.], [0., 1.]]])
    >>> ge.models.FactorizationMachine()(vectors).numpy().tolist()
    [[17.0]]

    Returns:
      Called on `[batch, features, dim]`: `[batch, 1]`.
    """

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, x: Any) -> Any:
        of_sum = tf.reduce_sum(x, axis=1) ** 2
        of_each = tf.reduce_sum(x**2, axis=1)
        return 0.5 * tf.reduce_sum(of_sum - of_each, axis=1, keepdims=True)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], 1)


@keras.utils.register_keras_serializable(package="group_embedding")
class CompressedInteraction(Layer):
    """The compressed interaction network of xDeepFM, section 3.1 of
    https://arxiv.org/abs/1803.05170.

    `X[k][h] = sum over i, j of W[k][i, j, h] * X[k - 1][i] * X[0][j]`, products element by element.

    Example:

    >>> ge.models.CompressedInteraction([5, 7])(tf.zeros([2, 4, 8])).shape
    TensorShape([2, 12])

    Args:
      sizes: the number of vectors of each layer.
      activation: the name of an activation of Keras.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.

    Returns:
      Called on `[batch, features, dim]`: `[batch, sum of sizes]`, the sums of all vectors.
    """

    def __init__(self, sizes: Sequence[int], activation: str = "linear", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sizes, self.activation = tuple(sizes), activation

    def build(self, input_shape: Any) -> None:
        count, before = input_shape[1], input_shape[1]
        self.kernels = []
        for k, size in enumerate(self.sizes):
            kernel = self.add_weight(
                name=f"kernel_{k}", shape=(before * count, size), initializer="glorot_uniform"
            )
            self.kernels.append(kernel)
            before = size
        self.built = True

    def call(self, x: Any) -> Any:
        activate = keras.activations.get(self.activation)
        first = tf.transpose(x, [0, 2, 1])  # [batch, dim, features]
        layer, sums = first, []
        for kernel in self.kernels:
            products = layer[..., :, None] * first[..., None, :]
            products = tf.reshape(products, [-1, x.shape[2], kernel.shape[0]])
            layer = activate(tf.matmul(products, kernel))
            sums.append(tf.reduce_sum(layer, axis=1))
        return tf.concat(sums, axis=-1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], sum(self.sizes))
