"""Training on the ranks of a job: strategy, optimizer, saver, and what happens when a rank ends."""

from group_embedding.distributed.collective_strategy import CollectiveStrategy
from group_embedding.distributed.distributed_saver import Saver
from group_embedding.distributed.elastic import run_elastic
from group_embedding.distributed.initial_values import broadcast_variables
from group_embedding.distributed.optimizer import DistributedOptimizer
from group_embedding.distributed.strategy import enable_distributed_strategy

__all__ = [
    "CollectiveStrategy",
    "DistributedOptimizer",
    "Saver",
    "broadcast_variables",
    "enable_distributed_strategy",
    "run_elastic",
]
