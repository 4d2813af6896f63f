"""The time of a step over many ranks, computed from bytes and recorded speeds."""

from group_embedding.ranks.simulate.machines import MACHINES, Machine, Network
from group_embedding.ranks.simulate.step_time import (
    PLACEMENTS,
    TRANSPORTS,
    Job,
    StepTime,
    TableOfModel,
    Traffic,
    best_placement,
    step_time,
    traffic_of,
)
from group_embedding.ranks.simulate.unique_ids import TracedIds, ZipfIds

__all__ = [
    "MACHINES",
    "PLACEMENTS",
    "TRANSPORTS",
    "Job",
    "Machine",
    "Network",
    "StepTime",
    "TableOfModel",
    "TracedIds",
    "Traffic",
    "ZipfIds",
    "best_placement",
    "step_time",
    "traffic_of",
]
