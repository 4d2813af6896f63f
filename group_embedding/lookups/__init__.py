"""The lookups of one call: arguments, tables, ids, groups that one op serves, results."""

from group_embedding.lookups.api import (
    group_embedding_lookup,
    group_embedding_lookup_sparse,
    route_ids,
)
from group_embedding.lookups.api import (
    group_embedding_lookup_signed as group_embedding_lookup_signed,
)
from group_embedding.lookups.lookup_table import tf_variable as tf_variable
from group_embedding.lookups.lookup_table import variable_of_all as variable_of_all
from group_embedding.lookups.owner_of import owner_of
from group_embedding.lookups.routed_ids import RoutedIds

__all__ = [
    "RoutedIds",
    "group_embedding_lookup",
    "group_embedding_lookup_sparse",
    "owner_of",
    "route_ids",
]
