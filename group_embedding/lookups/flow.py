"""The path of one call, from the ids of its features to their vectors.

    ids ── pack ──> a batch per group ── exchange ──> batches at the owners ── look up ──> vectors

`Lookups.groups` forms the groups: features that one op serves. A group has a source of rows: this
process (`ops/row_source.py`), the ranks of a job (`ranks/sharding/sharded_lookup.py`), or their
GPUs (`ranks/sharding/gpu_lookup.py`). The first two steps need the ids alone, and may be done for a
later lookup; the third reads the tables.

The way back needs no code here: each op has a gradient, which gives every table one gradient of
unique rows, at the owners of the rows.
"""

import functools

import tensorflow as tf

from group_embedding.ops.check_ids import NOT_CHECKED, check_ids
from group_embedding.ops.deferred import current_trace
from group_embedding.ops.group_ids import group_ids


def pack_ids(lookups, features):
    """Packs the ids of each group into one batch. No rank waits for it.

    Args:
        lookups: the `groups.Lookups` of a call.
        features: a FeatureIds per lookup.

    Returns:
        An `ops.group_ids.Batch` per group.
    """
    for table, feature in zip(lookups.tables, features):
        table.check_ids(feature.name, feature.values.dtype)
    groups = lookups.groups(features)
    batches = [_pack(served, features) for served in groups]
    return _refuse_bad_ids(lookups, groups, batches)


def exchange_ids(lookups, batches):
    """Sends ids to the ranks that own their rows, where that comes before the lookup and is not
    done yet. Takes and returns a batch per group."""
    groups = lookups.groups(batches)
    return [served.exchange_ids(batch) for served, batch in zip(groups, batches)]


def prefetch(lookups, batches):
    """Has rows begin to move to the first tier of their tables, where `exchange_ids` has been
    called. Takes and returns a batch per group."""
    groups = lookups.groups(batches)
    return [served.prefetch(batch) for served, batch in zip(groups, batches)]


def go_ahead(lookups, batches):
    """Does all that a later lookup of the batches need not wait for: ids are exchanged, rows
    prefetched, and those of other ranks fetched, where the ranks' strategy says so. Takes and
    returns a batch per group."""
    batches = prefetch(lookups, exchange_ids(lookups, batches))
    groups = lookups.groups(batches)
    return [served.fetch_ahead(batch) for served, batch in zip(groups, batches)]


def look_up(lookups, batches, concat):
    """Looks the batches of a call up and combines the rows of each sample.

    Args:
        lookups: the `groups.Lookups` of the call.
        batches: what `pack_ids`, `exchange_ids`, `prefetch` or `go_ahead` returned.
        concat: return one tensor, the results side by side.

    Returns:
        A [samples, dim] tensor per lookup, or with `concat` one tensor.
    """
    if (trace := current_trace()) is not None:
        return trace.defer_lookup(lookups, batches, concat)
    batches = exchange_ids(lookups, batches)
    _check_concat(lookups, concat)
    groups = lookups.groups(batches)
    if concat and len(groups) == 1:
        return groups[0].look_up(batches[0], concat=True)[0]
    vectors = [served.look_up(batch, concat=False) for served, batch in zip(groups, batches)]
    results = _in_order(groups, vectors)
    return tf.concat(results, axis=-1) if concat else results


def _pack(served, features):
    group, keyed = served.group, set(served.group.keyed)
    of_keyed = [f for f, table in enumerate(group.table_of_feature) if table in keyed]
    return group_ids([features[i] for i in served.lookups], of_keyed)


def _in_order(groups, vectors):
    """The vectors of groups, in the order of the call's lookups."""
    of_lookup = {}
    for served, of_group in zip(groups, vectors):
        of_lookup.update(zip(served.lookups, of_group))
    return [of_lookup[i] for i in range(len(of_lookup))]


def _check_concat(lookups, concat):
    dtypes = list(dict.fromkeys(table.dtype.name for table in lookups.tables))
    if concat and len(dtypes) > 1:
        raise ValueError(f"concat: expected tables of one dtype, got {dtypes}")


def _refuse_bad_ids(lookups, groups, batches):
    """Returns the batches, of which the ids have been checked that a lookup would refuse too late.

    A lookup of a keyed table inserts and counts keys, and must not do so in a step that another
    table's id ends. A GPU reports a bad id when the step's updates are on their way.
    """
    any_keyed = any(table.keyed is not None for table in lookups.tables)
    if lookups.invalid_ids != "raise" or not (any_keyed or _has_gpu()):
        return batches
    num_rows = [
        [_num_rows_to_check(table, batch, any_keyed) for table in served.group.tables]
        for served, batch in zip(groups, batches)
    ]
    if all(number is NOT_CHECKED for of_group in num_rows for number in of_group):
        return batches
    return check_ids([served.group for served in groups], batches, num_rows)


@functools.cache
def _has_gpu():
    return bool(tf.config.list_physical_devices("GPU"))


def _num_rows_to_check(table, batch, any_keyed):
    """The number of rows that a table's ids are checked against, or NOT_CHECKED. The ids of a table
    over ranks are checked as they are exchanged, so that the ranks fail together. For those that
    are on a GPU already, nothing waits unless a keyed table would change."""
    if table.keyed is not None or table.exchange:
        return NOT_CHECKED
    late = table.device_type == "GPU" and "CPU" in (batch.buffer.device or "")
    return table.num_rows() if any_keyed or late else NOT_CHECKED
