"""The lookup of one group in tables that this process holds whole: pack, then look up."""

from group_embedding.ops.group_ids import group_ids
from group_embedding.ops.group_lookup import group_lookup


def look_up_local(tables, features, table_of_feature, combiners, **options):
    """Results of one group; see `ops.group_lookup.group_lookup` for what it takes and returns."""
    batch = group_ids(features)
    names = [feature.name for feature in features]
    return group_lookup(tables, batch, table_of_feature, combiners, names, **options)
