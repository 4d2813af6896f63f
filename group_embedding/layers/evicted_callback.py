"""The keys that a model's tables evict, handed out as a Keras callback."""

from __future__ import annotations

from typing import Any

from group_embedding.layers.periodic_callback import PeriodicCallback, keyed_tables_of
from group_embedding.variables import EvictedTo, hand_out_evicted, hand_over_to


class EvictedKeys(PeriodicCallback):
    """Hands out the keys that a model's EmbeddingVariables evict for their budgets.

    Example:

    >>> callback = ge.layers.EvictedKeys("/data/evicted", every_n_batches=50)

    Args:
        to: a function or a folder, as of `ge.hand_out_evicted`.
        every_n_batches: after so many batches, after every epoch, and at the end of training, when
            what callbacks behind this one evicted by a save after the last epoch goes, too. Until
            then a table keeps what it has evicted, up to an eighth of its budget and what one
            eviction takes; older keys are dropped, and `EmbeddingVariable.budget_counts` counts
            them as `missed`.

    Raises:
        ValueError: every_n_batches is below 1; or, once so many have passed, no table of the model
            hands out keys.
    """

    def __init__(self, to: EvictedTo, every_n_batches: int = 100) -> None:
        super().__init__(every_n_batches)
        self._hand_over = hand_over_to(to)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._run()  # also where batches have just run it: a save of this epoch may have evicted

    def on_train_end(self, logs: Any = None) -> None:
        self._run()

    def run_at(self, batch: int) -> None:
        hand_out_evicted(keyed_tables_of(self.model), self._hand_over)
