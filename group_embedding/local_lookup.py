"""The lookup of one group in tables that this process holds whole: pack, locate keys, look up."""

from group_embedding.ops.group_ids import group_ids
from group_embedding.ops.group_lookup import group_lookup
from group_embedding.ops.locate_rows import locate_rows


def look_up_local(tables, features, table_of_feature, combiners, **options):
    """Results of one group; see `ops.group_lookup.group_lookup` for what it takes and returns."""
    by_key = [f for f, t in enumerate(table_of_feature) if tables[t].keyed is not None]
    names = [feature.name for feature in features]
    batch = group_ids(features, by_key)
    return look_up_batch(tables, batch, table_of_feature, combiners, names, **options)


def look_up_batch(tables, batch, table_of_feature, combiners, feature_names, times=None, **options):
    """The same of a batch, of whose keys `times` says how often each came."""
    keyed = [table.keyed for table in tables]
    if any(table is not None for table in keyed):
        batch = locate_rows(keyed, batch, table_of_feature, times)
    return group_lookup(tables, batch, table_of_feature, combiners, feature_names, **options)
