"""The keys that a model's tables evict, handed out as a Keras callback."""

from __future__ import annotations

from group_embedding.layers.periodic_callback import PeriodicCallback, keyed_tables_of
from group_embedding.variables import EvictedTo, hand_out_evicted, hand_over_to


class EvictedKeys(PeriodicCallback):
    """Hands out the keys that a model's EmbeddingVariables evict for their budgets.

    Example:

    >>> callback = ge.layers.EvictedKeys("/data/evicted", every_n_batches=50)

    Args:
        to: a function or a folder, as of `ge.hand_out_evicted`.
        every_n_batches: after so many batches, and after every epoch. Until then a table keeps what
            it has evicted, up to an eighth of its budget and what one eviction takes; older keys
            are dropped, and `EmbeddingVariable.budget_counts` counts them as `missed`.

    Raises:
        ValueError: every_n_batches is below 1; or, once so many have passed, no table of the model
            hands out keys.
    """

    def __init__(self, to: EvictedTo, every_n_batches: int = 100) -> None:
        super().__init__(every_n_batches)
        self._hand_over = hand_over_to(to)

    def run_at(self, batch: int) -> None:
        hand_out_evicted(keyed_tables_of(self.model), self._hand_over)
