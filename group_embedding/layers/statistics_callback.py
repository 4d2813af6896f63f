"""Statistics of a model's keyed tables, as a Keras callback."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from group_embedding.layers.periodic_callback import PeriodicCallback, keyed_tables_of
from group_embedding.variables import Statistics, statistics


class EmbeddingVariableStatistics(PeriodicCallback):
    """Writes statistics of a model's EmbeddingVariables for TensorBoard after every epoch: keys,
    bytes, hit rates, evictions and others of `ge.statistics`, each under `<table>/`. TensorFlow
    writes them with the package `tensorboard`.

    Example:

    >>> callback = ge.layers.EmbeddingVariableStatistics("/tmp/logs")

    Args:
        log_dir: folder of the events.
        every_n_batches: also write after so many batches; None: only after epochs.

    Raises:
        ValueError: every_n_batches is below 1.
    """

    def __init__(self, log_dir: str | os.PathLike[str], every_n_batches: int | None = None) -> None:
        super().__init__(every_n_batches)
        self._log_dir = log_dir
        self._writer: Any = None
        self._before: Statistics | None = None

    def set_model(self, model: Any) -> None:
        if model is not self.model:
            self._before = None  # statistics of other tables
        super().set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        self._writer = tf.summary.create_file_writer(self._log_dir)

    def on_train_end(self, logs: Any = None) -> None:
        self._writer.close()

    def run_at(self, batch: int) -> None:
        found = statistics(keyed_tables_of(self.model))
        with self._writer.as_default(step=batch):
            for tag, value in found.scalars(self._before).items():
                tf.summary.scalar(tag, value)
        self._before = found
        self._writer.flush()
