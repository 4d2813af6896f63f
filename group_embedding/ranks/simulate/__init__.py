"""The time of a step over many ranks, computed from bytes and recorded speeds."""

from group_embedding.ranks.simulate.machines import (
    CPU,
    MACHINES,
    Machine,
    Network,
    cpu_of,
    network_of,
)
from group_embedding.ranks.simulate.step_time import (
    COLUMN_ROWS,
    PLACEMENTS,
    TRANSPORTS,
    WHOLE,
    Job,
    StepTime,
    TableOfModel,
    Traffic,
    best_placement,
    bytes_on_link,
    step_time,
    traffic_of,
)
from group_embedding.ranks.simulate.unique_ids import TracedIds, ZipfIds

__all__ = [
    "COLUMN_ROWS",
    "CPU",
    "MACHINES",
    "PLACEMENTS",
    "TRANSPORTS",
    "WHOLE",
    "Job",
    "Machine",
    "Network",
    "StepTime",
    "TableOfModel",
    "TracedIds",
    "Traffic",
    "ZipfIds",
    "best_placement",
    "bytes_on_link",
    "cpu_of",
    "network_of",
    "step_time",
    "traffic_of",
]
