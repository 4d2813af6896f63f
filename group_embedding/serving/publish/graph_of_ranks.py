"""The graph of TensorFlow 1 that a publisher publishes, on one of several ranks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np

from group_embedding.ranks.distributed import Saver
from group_embedding.ranks.sharding import sharded_table
from group_embedding.serving.publish.rank_agreement import RankAgreement, first_rank_exports
from group_embedding.serving.publish.shard_rows import ShardRows
from group_embedding.serving.publish.trained_graph import TrainedGraph


class GraphOfRanks(TrainedGraph):
    """The variables of the default graph, whose tables are spread over ranks.

    Args:
        export: As of TrainedGraph. Rank 0 calls it, alone.
        exchange: The exchange of the ranks.
        abandoned_seconds: As of TrainedGraph.

    Attributes:
        shards: {key: ShardRows} of tables by row number that are spread.
    """

    def __init__(
        self, export: Callable[[str, str], str | bytes], exchange: Any, abandoned_seconds: float
    ) -> None:
        super().__init__(export, Saver(), abandoned_seconds)
        self._rank = exchange.rank
        self._agreement = RankAgreement(exchange, count=1)

    def export(self, folder: str) -> None:
        """Writes the model as it is now as a SavedModel. Every rank calls it, with one folder.

        Raises:
            RuntimeError: On other ranks, where rank 0 could not export.
        """
        work = os.path.join(os.path.dirname(folder), "checkpoint")
        os.makedirs(work, exist_ok=True)
        prefix = os.path.join(work, "model")
        prefix = self._saver.save(self.session, prefix, write_meta_graph=False)
        self._find_served(
            first_rank_exports(self._agreement, lambda: self._exported(prefix, work, folder))
        )
        if self._rank == 0:
            shutil.rmtree(work, ignore_errors=True)

    def _find_served(self, shapes):
        super()._find_served(shapes)
        spread = [shard for shard in map(sharded_table, self._all.values()) if shard is not None]
        self.shards = {
            shard.name: ShardRows(shard.name, shard, lambda shard=shard: self._rows_of(shard))
            for shard in spread
            if shapes.get(shard.name) == shard.shape.as_list()
        }
        whole = {name for name, v in self._all.items() if sharded_table(v) is None}
        self._variables = {
            name: variable
            for name, variable in self._variables.items()
            if self._rank == 0 and name in whole
        }

    def _rows_of(self, shard):
        # A copy: a session may give out the memory of a variable itself.
        return np.array(self._run(shard.variable))
