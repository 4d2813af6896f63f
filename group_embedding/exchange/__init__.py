"""How the ranks of a job share tables: the exchange, and what lies on top of it.

`interface` is the one page that `local`, `horovod`, `host_memory` and `replicas` implement;
`active` knows which is in use; `placements` says where tables go that are made together;
`sharded_table` makes those whose rows are spread over the ranks (`replica_tables`: what is
different where these are in one process), `sharded_lookup` reads them, and keyed tables beside
them; `gpu_lookup` those in the memory of GPUs, whose ranks met in `nccl`.
"""

from group_embedding.exchange.active import current, set_current, unsharded
from group_embedding.exchange.gather_strings import gather_strings, gather_text
from group_embedding.exchange.gpu_lookup import is_served_by_gpus, look_up_on_gpus
from group_embedding.exchange.interface import Exchange
from group_embedding.exchange.local import LocalExchange
from group_embedding.exchange.nccl import meet
from group_embedding.exchange.placements import resolve_placements
from group_embedding.exchange.replica_tables import (
    check_in_scope,
    check_trained,
    is_over_replicas,
    let_train,
    part_here,
    parts_of,
    refuse_stock_updates,
)
from group_embedding.exchange.replicas import ReplicaExchange
from group_embedding.exchange.sharded_lookup import (
    RoutedBatch,
    describe_spread,
    look_up_sharded,
    route_sharded,
)
from group_embedding.exchange.sharded_table import (
    ShardedTable,
    assign_rows,
    exchange_of,
    gather_rows,
    make_table,
    mark_shard,
    restore_table,
    sharded_table,
    table_is_made,
    table_shape,
    when_table_is_made,
)

__all__ = [
    "Exchange",
    "LocalExchange",
    "ReplicaExchange",
    "RoutedBatch",
    "ShardedTable",
    "assign_rows",
    "check_in_scope",
    "check_trained",
    "current",
    "describe_spread",
    "exchange_of",
    "gather_rows",
    "gather_strings",
    "gather_text",
    "is_over_replicas",
    "is_served_by_gpus",
    "let_train",
    "look_up_on_gpus",
    "look_up_sharded",
    "make_table",
    "mark_shard",
    "meet",
    "part_here",
    "parts_of",
    "refuse_stock_updates",
    "resolve_placements",
    "restore_table",
    "route_sharded",
    "set_current",
    "sharded_table",
    "table_is_made",
    "table_shape",
    "unsharded",
    "when_table_is_made",
]
