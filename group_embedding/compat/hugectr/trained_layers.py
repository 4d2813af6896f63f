"""HugeCTR's dense layers that have weights."""

from __future__ import annotations

import tensorflow as tf

from group_embedding.compat.hugectr.dense_layer import DenseLayer, initializer_of, only
from group_embedding.keras_compat import keras

_ACTIVATIONS = {"Relu": "relu", "None": None, "Non": None}


class InnerProduct(DenseLayer):
    """x W + b, on the last axis."""

    activation: str | None = None

    def _read(self, fields):
        inner = fields.take_object("fc_param")
        units = inner.take("num_output", int)
        self.dense = _dense(units, self.activation, True, *_initializers_of_dense(inner))
        inner.end()

    def call(self, bottoms):
        return self.dense(only(self, bottoms))


class FusedInnerProduct(InnerProduct):
    """The older files' `InnerProduct` with a ReLU."""

    activation = "relu"


class MLP(DenseLayer):
    """Several inner products, each with its activation."""

    def _read(self, fields):
        inner = fields.take_object("mlp_param")
        units = inner.take("num_outputs", list)
        inner.take("num_output", int, 0)  # HugeCTR writes it into every file, and reads it not
        activation = inner.take("activation", str, "Relu")
        activations = inner.take("activations", list, [activation] * len(units))
        biases = inner.take("biases", list, [inner.take("use_bias", bool, True)] * len(units))
        kernel, bias = _initializers_of_dense(inner)
        inner.end()
        for key, values in (("activations", activations), ("biases", biases)):
            if len(values) != len(units):
                raise ValueError(
                    f"{inner.owner}: expected {len(units)} {key}, as many as num_outputs, got "
                    f"{len(values)}"
                )
        for word in activations:
            if word not in _ACTIVATIONS:
                raise ValueError(f"{inner.owner}: expected activations Relu or None, got {word!r}")
        self.layers_of = [
            _dense(n, _ACTIVATIONS[word], has_bias, kernel, bias)
            for n, word, has_bias in zip(units, activations, biases)
        ]

    def call(self, bottoms):
        x = only(self, bottoms)
        for layer in self.layers_of:
            x = layer(x)
        return x


class MultiCross(DenseLayer):
    """The cross layers of DCN, x0 (x w) + b + x, or with `projection_dim` of DCNv2,
    x0 * (x U V + b) + x."""

    def _read(self, fields):
        inner = fields.take_object("mc_param")
        self.num_layers = inner.take("num_layers", int)
        self.projection = inner.take("projection_dim", int, 0)
        self.kernel_init = initializer_of(inner, "weight_init", "glorot_uniform")
        self.bias_init = initializer_of(inner, "bias_init", "zeros")
        inner.end()

    def build(self, shapes):
        width = int(_shape_of(shapes)[-1])
        inner = self.projection
        shapes_of = {"u": (width, inner), "v": (inner, width)} if inner else {"w": (width, 1)}
        shapes_of["b"] = (width,)
        self.crosses = []
        for number in range(self.num_layers):
            self.crosses.append(
                {
                    name: self.add_weight(
                        shape=shape,
                        initializer=(self.bias_init if name == "b" else self.kernel_init)(),
                        name=f"{name}{number}",
                    )
                    for name, shape in shapes_of.items()
                }
            )
        super().build(shapes)

    def call(self, bottoms):
        first = x = only(self, bottoms)
        for cross in self.crosses:
            cast = {name: tf.cast(weight, x.dtype) for name, weight in cross.items()}
            if self.projection:
                x = first * (x @ cast["u"] @ cast["v"] + cast["b"]) + x
            else:
                x = first * (x @ cast["w"]) + cast["b"] + x
        return x

    @property
    def weights_in_order(self):
        return [weight for cross in self.crosses for weight in cross.values()]


class WeightMultiply(DenseLayer):
    """[B, n] by a weight [n, k] -> [B, n k]: each number times a vector of its own."""

    def _read(self, fields):
        self.shape_of = fields.take("weight_dims", list)
        self.init = initializer_of(fields, "weight_init", "glorot_uniform")
        if len(self.shape_of) != 2:
            raise ValueError(f"{fields.owner}: expected two weight_dims, got {self.shape_of}")

    def build(self, shapes):
        width = int(_shape_of(shapes)[-1])
        if width != self.shape_of[0]:
            raise ValueError(
                f"layer '{self.name}' (WeightMultiply): expected weight_dims[0] {width}, the width "
                f"of its bottom, got {self.shape_of[0]}"
            )
        self.weight = self.add_weight(shape=self.shape_of, initializer=self.init(), name="weight")
        super().build(shapes)

    def call(self, bottoms):
        x = only(self, bottoms)
        weighted = x[:, :, None] * tf.cast(self.weight, x.dtype)
        return tf.reshape(weighted, [-1, self.shape_of[0] * self.shape_of[1]])


class BatchNorm(DenseLayer):
    """Batch normalization; `factor` is the weight of the newest batch in the moving averages."""

    def _read(self, fields):
        inner = fields.take_object("bn_param")
        self.norm = keras.layers.BatchNormalization(
            momentum=1.0 - inner.take("factor", float),
            epsilon=inner.take("eps", float),
            gamma_initializer=initializer_of(inner, "gamma_init", "ones")(),
            beta_initializer=initializer_of(inner, "beta_init", "zeros")(),
        )
        inner.end()

    def call(self, bottoms, training=None):
        return self.norm(only(self, bottoms), training=training)


class LayerNorm(DenseLayer):
    def _read(self, fields):
        inner = fields.take_object("ln_param")
        self.norm = keras.layers.LayerNormalization(
            epsilon=inner.take("eps", float),
            gamma_initializer=initializer_of(inner, "gamma_init", "ones")(),
            beta_initializer=initializer_of(inner, "beta_init", "zeros")(),
        )
        inner.end()

    def call(self, bottoms):
        return self.norm(only(self, bottoms))


def _initializers_of_dense(fields):
    """Initializers of kernel and bias; None where the bias has its default, which depends on the
    width of the layer."""
    kernel = initializer_of(fields, "weight_init", keras.initializers.GlorotNormal)
    has_bias = "bias_init" in fields.left()
    bias = initializer_of(fields, "bias_init", "zeros")
    return kernel, bias if has_bias else None


def _dense(units, activation, has_bias, kernel, bias):
    """A Dense layer with HugeCTR's default initial values."""
    return keras.layers.Dense(
        units,
        activation,
        use_bias=has_bias,
        kernel_initializer=kernel(),
        bias_initializer=bias() if bias else _small_normal(units),
    )


def _small_normal(units):
    return keras.initializers.TruncatedNormal(stddev=units**-0.5)


def _shape_of(shapes):
    """The shape of the only bottom."""
    return shapes[0]
