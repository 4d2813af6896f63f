"""The lookup of one group in tables that this process holds whole: pack, locate keys, look up."""

from group_embedding.ops.bring_rows import bring_rows
from group_embedding.ops.group_ids import group_ids
from group_embedding.ops.group_lookup import group_lookup
from group_embedding.ops.locate_rows import locate_rows


def pack_batch(tables, features, table_of_feature):
    """The ids of one group as one batch; no table is read."""
    return group_ids(
        features, [f for f, t in enumerate(table_of_feature) if tables[t].keyed is not None]
    )


def bring_batch(tables, batch, table_of_feature):
    """The batch, whose rows begin to move to the first tier of their tables."""
    return bring_rows([table.keyed for table in tables], batch, table_of_feature)


def locate_batch(tables, batch, table_of_feature, times=None):
    """The batch by row numbers alone: those of keys are looked for, and made in training.

    Args:
        times: None, or the occurrences of each of the batch's keys.
    """
    if all(table.keyed is None for table in tables):
        return batch
    return locate_rows(tables, batch, table_of_feature, times)


def look_up_batch(tables, batch, table_of_feature, combiners, feature_names, times=None, **options):
    """Results of one group; see `ops.group_lookup.group_lookup` for what it takes and returns, and
    `locate_batch` for `times`."""
    batch = locate_batch(tables, batch, table_of_feature, times)
    return group_lookup(tables, batch, table_of_feature, combiners, feature_names, **options)
