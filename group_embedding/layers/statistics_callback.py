"""The sizes of a model's keyed tables, as a Keras callback."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import keras
from group_embedding.layers.layer_tables import lookup_param
from group_embedding.variables import EmbeddingVariable
from group_embedding.variables.statistics_hook import statistics


class EmbeddingVariableStatistics(keras.callbacks.Callback):
    """Writes the sizes of a model's EmbeddingVariables for TensorBoard after every epoch: keys,
    memory_bytes, load_factor. TensorFlow writes them with the package `tensorboard`.

    Example:

    >>> callback = ge.layers.EmbeddingVariableStatistics("/tmp/logs")

    Args:
        log_dir: folder of the events.
        every_n_batches: also write after so many batches; None: only after epochs.

    Raises:
        ValueError: every_n_batches is below 1.
    """

    def __init__(self, log_dir: str | os.PathLike[str], every_n_batches: int | None = None) -> None:
        super().__init__()
        if every_n_batches is not None and every_n_batches < 1:
            raise ValueError(f"every_n_batches: expected at least 1, got {every_n_batches}")
        self._log_dir, self._every = log_dir, every_n_batches
        self._writer: Any = None
        self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._writer = tf.summary.create_file_writer(self._log_dir)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if self._every is not None and self._batches % self._every == 0:
            self._write()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._write()

    def on_train_end(self, logs: Any = None) -> None:
        self._writer.close()

    def _write(self):
        """At the number of the batch, counted over all epochs."""
        with self._writer.as_default(step=self._batches):
            for weight in self.model.weights:
                table = lookup_param(weight)
                if isinstance(table, EmbeddingVariable):
                    for name, value in statistics(table).items():
                        tf.summary.scalar(name, value)
        self._writer.flush()
