"""`ItemFrequency`: how often items are in batches, estimated while training."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.lookups import tf_variable
from group_embedding.recommender.zoo.arguments import Layer


@keras.utils.register_keras_serializable(package="group_embedding")
class ItemFrequency(Layer):
    """The logarithm of the share of batches that have an item: algorithm 2 of Yi et al.,
    https://doi.org/10.1145/3298689.3346996.

    For each item it keeps the step in which it was last seen, and the moving average of the steps
    between two: q is one by this average.

    Example:

    >>> frequency = ge.models.ItemFrequency(num_buckets=100, rate=0.5, start=4.0)
    >>> for step in range(20):
    ...     log_q = frequency(tf.constant([3, 3, 7] if step % 4 == 0 else [3, 3, 3]), training=True)
    >>> log_q = frequency(tf.constant([3, 7]))
    >>> [f"{q:.1f}" for q in tf.exp(log_q).numpy()]
    ['1.0', '0.3']

    Args:
      num_buckets: into how many counts ids are hashed.
      rate: of the moving average.
      start: the steps between two, of an item that was not seen yet.
      **kwargs: `name`, `dtype` and `trainable`, as for every Keras layer.

    Returns:
      Called on int ids `[batch]`: float32 `[batch]`, the natural logarithm of q.
    """

    def __init__(
        self, num_buckets: int, rate: float = 0.01, start: float = 100.0, **kwargs: Any
    ) -> None:
        kwargs.setdefault("autocast", False)
        super().__init__(**kwargs)
        self.num_buckets, self.rate, self.start = num_buckets, rate, start

    def build(self, input_shape: Any = None) -> None:
        def state(name, shape, dtype, initializer):
            return self.add_weight(
                name=name, shape=shape, dtype=dtype, initializer=initializer, trainable=False
            )

        start = keras.initializers.Constant(self.start)
        self.step = state("step", (), "int64", "zeros")
        self.last_seen = state("last_seen", (self.num_buckets,), "int64", "zeros")
        self.interval = state("interval", (self.num_buckets,), "float32", start)
        self.built = True

    def call(self, ids: Any, training: Any = None) -> Any:
        buckets = tf.math.floormod(tf.cast(ids, tf.int64) * 0x9E3779B1, self.num_buckets)
        interval = tf_variable(self.interval)
        seen = tf.gather(interval, buckets)
        if training:
            last_seen, step = tf_variable(self.last_seen), tf_variable(self.step)
            now = step.assign_add(1, read_value=True)
            since = tf.cast(now - tf.gather(last_seen, buckets), tf.float32)
            seen = (1 - self.rate) * seen + self.rate * since
            # Equal ids write equal values.
            with tf.control_dependencies([since]):
                interval.scatter_update(tf.IndexedSlices(seen, buckets))
                last_seen.scatter_update(tf.IndexedSlices(tf.fill(tf.shape(buckets), now), buckets))
        return -tf.math.log(seen)
