"""A Keras callback that does something with a model's keyed tables every few batches."""

from __future__ import annotations

from typing import Any

from group_embedding.config import check_int
from group_embedding.keras_compat import keras
from group_embedding.layers.layer_tables import lookup_param
from group_embedding.variables import EmbeddingVariable


class PeriodicCallback(keras.callbacks.Callback):
    """Calls `run_at(batch)` whenever `every_n_batches` have passed, and after every epoch; None:
    only after epochs. Batches are counted over all epochs, from 1; with `steps_per_execution` of
    `compile`, Keras calls it once for several batches."""

    def __init__(self, every_n_batches: int | None) -> None:
        super().__init__()
        if every_n_batches is not None:
            every_n_batches = check_int(type(self).__name__, "every_n_batches", every_n_batches, 1)
        self._every = every_n_batches
        self._batches = self._before_epoch = self._last_run = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._before_epoch = self._batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        had, self._batches = self._batches, self._before_epoch + self._number_of(batch)
        if self._every is not None and self._batches // self._every > had // self._every:
            self._run()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._batches > self._last_run:
            self._run()

    def _number_of(self, batch):
        """How many batches of the epoch have ended with that one. Keras may count batches to the
        end of an execution that had fewer."""
        of_epoch = (self.params or {}).get("steps")
        return batch + 1 if of_epoch is None else min(batch + 1, of_epoch)

    def _run(self):
        self._last_run = self._batches
        self.run_at(self._batches)

    def run_at(self, batch: int) -> None:
        raise NotImplementedError


def keyed_tables_of(model: Any) -> list[EmbeddingVariable]:
    """The EmbeddingVariables among a model's weights."""
    params = [lookup_param(weight) for weight in model.weights]
    return [param for param in params if isinstance(param, EmbeddingVariable)]
