"""Which rank has which row of a table, and lookups of tables whose rows are spread over ranks."""

from group_embedding.ranks.sharding.make_sharded_table import make_table as make_table
from group_embedding.ranks.sharding.placement_plan import plan_placements as plan_placements
from group_embedding.ranks.sharding.replica_tables import is_over_replicas as is_over_replicas
from group_embedding.ranks.sharding.replica_tables import parts_of as parts_of
from group_embedding.ranks.sharding.sharded_table import assign_rows as assign_rows
from group_embedding.ranks.sharding.sharded_table import exchange_of as exchange_of
from group_embedding.ranks.sharding.sharded_table import gather_rows as gather_rows
from group_embedding.ranks.sharding.sharded_table import refuse_columns as refuse_columns
from group_embedding.ranks.sharding.sharded_table import sharded_table as sharded_table
from group_embedding.ranks.sharding.sharded_table import table_shape as table_shape
