"""Numbers and sentences that the ranks of a job tell each other between two steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.ranks.exchange import gather_text, unsharded, waits_in

v1 = tf.compat.v1


class RankAgreement:
    """Meetings of all ranks, in eager code and beside sessions of TensorFlow 1. One rank meets
    itself, and nothing is sent.

    Args:
        exchange: The exchange of the ranks.
        count: How many numbers a rank gives in a meeting.
    """

    def __init__(self, exchange: Any, count: int) -> None:
        self.rank = exchange.rank
        self.num_ranks = exchange.num_ranks
        self._exchange = exchange
        self._session: Any = None
        if self.num_ranks == 1:
            return
        on_cpu = v1.ConfigProto(device_count={"GPU": 0})
        with tf.Graph().as_default() as graph:
            self._given = v1.placeholder(tf.int64, [1, count])
            (self._gathered,) = exchange.allgather([self._given], "publisher_meets")
        self._session = v1.Session(graph=graph, config=on_cpu)

    def meet(self, numbers: Sequence[int]) -> np.ndarray:
        """The numbers of all ranks, int64 [ranks, count]."""
        if self._session is None:
            return np.array([numbers], np.int64)
        with waits_in("publisher_meets", "ranks that publish a model"):
            return self._session.run(self._gathered, {self._given: [list(map(int, numbers))]})

    def tell(self, what: Any) -> list[Any]:
        """The values of all ranks, of types that JSON has; rank 0's first."""
        if self._session is None:
            return [what]
        told = gather_text(self._exchange, json.dumps(what), "publisher_tells")
        return [json.loads(text) for text in told]

    def from_first_rank(
        self,
        function: Callable[[], Any],
        failures: type[Exception] | tuple[type[Exception], ...],
        failed: Callable[[str], Exception],
    ) -> Any:
        """The result, of types that JSON has, of a function that rank 0 alone calls.

        Args:
            function: Called on rank 0.
            failures: Those of its errors that all ranks raise: rank 0 itself, others what `failed`
                makes of the message.
        """
        result, error = None, None
        if self.rank == 0:
            try:
                result = function()
            except failures as raised:  # when the others know
                error = raised
        result, message = self.tell([result, None if error is None else str(error)])[0]
        if error is not None:
            raise error
        if message is not None:
            raise failed(message)
        return result

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def first_rank_exports(agreement: RankAgreement, export: Callable[[], Any]) -> Any:
    """Returns the result of `export()`, which rank 0 alone calls, where tables are made whole.

    Raises:
        RuntimeError: On other ranks, where rank 0 could not export.
    """

    def export_whole():
        with unsharded():
            return export()

    return agreement.from_first_rank(
        export_whole,
        Exception,
        lambda message: RuntimeError(f"rank 0 could not export the model: {message}"),
    )
