"""Training on the ranks of a job: strategy, optimizer, saver, and what happens when a rank ends."""

from typing import TYPE_CHECKING, Any

from group_embedding import import_paths
from group_embedding.ranks.distributed.distributed_saver import Saver
from group_embedding.ranks.distributed.elastic import run_elastic
from group_embedding.ranks.distributed.exported import (
    export_by_first_rank as export_by_first_rank,
)
from group_embedding.ranks.distributed.initial_values import broadcast_variables
from group_embedding.ranks.distributed.optimizer import DistributedOptimizer
from group_embedding.ranks.distributed.optimizer import (
    distribute_new_optimizers as distribute_new_optimizers,
)
from group_embedding.ranks.distributed.replica_optimizer import (
    share_over_replicas as share_over_replicas,
)
from group_embedding.ranks.distributed.slots import mark_slots as mark_slots
from group_embedding.ranks.distributed.strategy import enable_distributed_strategy

__all__ = [
    "CollectiveStrategy",
    "DistributedOptimizer",
    "Saver",
    "broadcast_variables",
    "enable_distributed_strategy",
    "run_elastic",
]

if TYPE_CHECKING:
    CollectiveStrategy: Any
else:
    __getattr__ = import_paths.names_of(__name__)  # DeepRec's form of a strategy
