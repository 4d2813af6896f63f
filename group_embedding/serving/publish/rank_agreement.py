"""Numbers and sentences that the ranks of a job tell each other between two steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.ranks.exchange import gather_text, waits_in

v1 = tf.compat.v1


class RankAgreement:
    """Meetings of all ranks, in eager code and beside sessions of TensorFlow 1.

    Args:
        exchange: The exchange of the ranks.
        count: How many numbers a rank gives in a meeting.
    """

    def __init__(self, exchange: Any, count: int) -> None:
        self.rank = exchange.rank
        self.num_ranks = exchange.num_ranks
        self._exchange = exchange
        on_cpu = v1.ConfigProto(device_count={"GPU": 0})
        with tf.Graph().as_default() as graph:
            self._given = v1.placeholder(tf.int64, [1, count])
            (self._gathered,) = exchange.allgather([self._given], "publisher_meets")
        self._session = v1.Session(graph=graph, config=on_cpu)

    def meet(self, numbers: Sequence[int]) -> np.ndarray:
        """The numbers of all ranks, int64 [ranks, count]."""
        with waits_in("publisher_meets", "ranks that publish a model"):
            return self._session.run(self._gathered, {self._given: [list(map(int, numbers))]})

    def tell(self, what: Any) -> list[Any]:
        """The values of all ranks, of types that JSON has; rank 0's first."""
        told = gather_text(self._exchange, json.dumps(what), "publisher_tells")
        return [json.loads(text) for text in told]

    def close(self) -> None:
        self._session.close()
