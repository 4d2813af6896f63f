"""HugeCTR's dense layers without weights."""

from __future__ import annotations

import tensorflow as tf

from group_embedding.compat.hugectr.dense_layer import DenseLayer, only
from group_embedding.keras_compat import keras


class FmOrder2(DenseLayer):
    """[B, n k] -> [B, k]: the sum of the products of all pairs of n vectors."""

    def _read(self, fields):
        self.dim = fields.take("out_dim", int)

    def call(self, bottoms):
        x = only(self, bottoms)
        vectors = tf.reshape(x, [-1, x.shape[-1] // self.dim, self.dim])
        total = tf.reduce_sum(vectors, 1)
        return 0.5 * (total * total - tf.reduce_sum(vectors * vectors, 1))


class Interaction(DenseLayer):
    """A vector [B, d] and slots [B, n, d] -> the vector, the dot product of each pair of the n + 1
    vectors, and a 0, which HugeCTR adds to align rows."""

    def call(self, bottoms):
        if len(bottoms) != 2:
            raise ValueError(
                f"layer '{self.name}' (Interaction): expected two bottoms, a vector and the slots "
                f"of an embedding, got {len(bottoms)}"
            )
        vector, slots = bottoms
        vectors = tf.concat([vector[:, None], slots], 1)
        count = vectors.shape[1]
        products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, count * count])
        pairs = [row * count + column for row in range(count) for column in range(row)]
        zero = tf.zeros_like(vector[:, :1])
        return tf.concat([vector, tf.gather(products, pairs, axis=1), zero], 1)


class Dropout(DenseLayer):
    def _read(self, fields):
        self.dropout = keras.layers.Dropout(fields.take("rate", float, 0.5))

    def call(self, bottoms, training=None):
        return self.dropout(only(self, bottoms), training=training)


class ELU(DenseLayer):
    def _read(self, fields):
        inner = fields.take_object("elu_param")
        self.alpha = inner.take("alpha", float)
        inner.end()

    def call(self, bottoms):
        x = only(self, bottoms)
        return tf.where(x < 0, self.alpha * (tf.exp(tf.minimum(x, 0)) - 1), x)


class PReLUDice(DenseLayer):
    """DIN's activation Dice: x, or alpha x, mixed by the sigmoid of x normalized over the batch."""

    def _read(self, fields):
        inner = fields.take_object("prelu_dice_param")
        # HugeCTR writes `alpha`, and reads `elu_alpha`.
        alpha = inner.take("elu_alpha", float, None)
        self.alpha = inner.take("alpha", float, 0.0) if alpha is None else alpha
        self.epsilon = inner.take("eps", float)
        inner.end()

    def call(self, bottoms):
        x = only(self, bottoms)
        mean, variance = tf.nn.moments(x, 0)
        share = tf.sigmoid((x - mean) / tf.sqrt(variance + self.epsilon))
        return share * x + (1 - share) * self.alpha * x


class Reshape(DenseLayer):
    """To rows of `leading_dim` numbers, or `time_step` such rows; or the `selected` slots."""

    def _read(self, fields):
        self.selected = fields.take("selected", list, None)
        self.width = self.steps = None
        if self.selected is None:
            self.width = fields.take("leading_dim", int)
            self.steps = fields.take("time_step", int, 0)

    def call(self, bottoms):
        x = only(self, bottoms)
        if self.selected is not None:
            picked = tf.gather(x, self.selected, axis=1)
            return tf.reshape(picked, [-1, len(self.selected) * x.shape[-1]])
        return tf.reshape(x, [-1, *([self.steps] if self.steps else []), self.width])


class Slice(DenseLayer):
    """Ranges of columns, which may overlap: one output for each."""

    def _read(self, fields):
        self.ranges = fields.take("ranges", list)

    def call(self, bottoms):
        x = only(self, bottoms)
        for begin, end in self.ranges:
            if not 0 <= begin < end <= x.shape[1]:
                raise ValueError(
                    f"layer '{self.name}' (Slice): expected ranges within 0 to {x.shape[1]}, the "
                    f"width of its bottom, got {begin} to {end}"
                )
        return [x[:, begin:end] for begin, end in self.ranges]


class Concat(DenseLayer):
    def _read(self, fields):
        self.axis = fields.take("axis", int, 1)

    def call(self, bottoms):
        return tf.concat(bottoms, self.axis)


class FusedReshapeConcat(DenseLayer):
    """Slots [B, n, d] of several embeddings, side by side -> the first n - 1 as rows
    [B (n - 1), d], and the last one, [B, d]."""

    def call(self, bottoms):
        slots = tf.concat(bottoms, 2)
        return [tf.reshape(slots[:, :-1], [-1, slots.shape[2]]), slots[:, -1]]


class FusedReshapeConcatGeneral(DenseLayer):
    """Slots [B, n, d] of several embeddings, side by side, as rows [B n, d]."""

    def call(self, bottoms):
        slots = tf.concat(bottoms, 2)
        return tf.reshape(slots, [-1, slots.shape[2]])


class Scale(DenseLayer):
    """Repeats each number (`axis` 0) or each row (1) `factor` times."""

    def _read(self, fields):
        inner = fields.take_object("scale_param")
        self.axis, self.factor = int(inner.take("axis", float)), int(inner.take("factor", float))
        inner.end()
        if self.axis not in (0, 1):
            raise ValueError(f"{fields.owner}: expected axis 0 or 1, got {self.axis}")

    def call(self, bottoms):
        return tf.repeat(only(self, bottoms), self.factor, axis=1 - self.axis)


class Softmax(DenseLayer):
    """Softmax of the last axis, times nothing: HugeCTR writes a `factor` that it does not use."""

    def _read(self, fields):
        fields.take("factor", float, 1.0)

    def call(self, bottoms):
        return tf.nn.softmax(only(self, bottoms))


class Gather(DenseLayer):
    """Rows of the first axis."""

    def _read(self, fields):
        self.indices = fields.take("indices", list)

    def call(self, bottoms):
        return tf.gather(only(self, bottoms), self.indices)


class _Reduce(DenseLayer):
    def _read(self, fields):
        self.axis = fields.take("axis", int)

    def call(self, bottoms):
        return self.reduce(only(self, bottoms), self.axis, keepdims=True)


class ReduceSum(_Reduce):
    reduce = staticmethod(tf.reduce_sum)


class ReduceMean(_Reduce):
    reduce = staticmethod(tf.reduce_mean)
