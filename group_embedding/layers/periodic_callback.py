"""A Keras callback that does something with a model's keyed tables every few batches."""

from __future__ import annotations

from typing import Any

from group_embedding.keras_compat import keras
from group_embedding.layers.layer_tables import lookup_param
from group_embedding.variables import EmbeddingVariable


class PeriodicCallback(keras.callbacks.Callback):
    """Calls `run_at(batch)` whenever `every_n_batches` have passed, and after every epoch; None:
    only after epochs. Batches are counted over all epochs, from 1."""

    def __init__(self, every_n_batches: int | None) -> None:
        super().__init__()
        if every_n_batches is not None and every_n_batches < 1:
            raise ValueError(f"every_n_batches: expected at least 1, got {every_n_batches}")
        self._every = every_n_batches
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if self._every is not None and self._batches % self._every == 0:
            self.run_at(self._batches)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.run_at(self._batches)

    def run_at(self, batch: int) -> None:
        raise NotImplementedError


def keyed_tables_of(model: Any) -> list[EmbeddingVariable]:
    """The EmbeddingVariables among a model's weights."""
    params = [lookup_param(weight) for weight in model.weights]
    return [param for param in params if isinstance(param, EmbeddingVariable)]
