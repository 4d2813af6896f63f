"""`CountBatches`: under `fit`, the state of a reader follows the batches of training."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from group_embedding.recommender.data.reader import Reader


class CountBatches(tf.keras.callbacks.Callback):
    """A callback for `fit` that advances the state of a reader by the batches of training.

    Example:

    >>> with open("/tmp/ge_counted.csv", "w") as file:
    ...     _ = file.write("age,click\\n31,1\\n45,0\\n54,1\\n")
    >>> reader = ge.data.Reader("/tmp/ge_counted.csv", 2, groups={"x": ["age"]}, labels="click")
    >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> dataset = reader.map(lambda features, label: (features["x"], label))
    >>> _ = model.fit(dataset, verbose=0, callbacks=[ge.data.CountBatches(reader)])
    >>> reader.state.consumed
    2

    Args:
        reader: the `Reader` whose batches, or a dataset with an element for each of them, `fit` was
            given.
    """

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._state, self._seen = reader.state, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._seen = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._state.advance(batch + 1 - self._seen)
        self._seen = batch + 1
