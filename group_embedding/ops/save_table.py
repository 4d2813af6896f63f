"""The ops that save keyed tables beside a checkpoint and restore them."""

import tensorflow as tf

from group_embedding.ops._library import library

for _name in (
    "SnapshotTables",
    "FullSaveId",
    "SaveTable",
    "MergeManifests",
    "SeesFiles",
    "VerifyTable",
    "RestoreTable",
):
    tf.no_gradient(f"GroupEmbedding>{_name}")


def snapshot_tables(tables, steps, evictions, changes_only):
    """Takes a snapshot of tables at one instant, and returns its number."""
    kinds, steps_to_live, l2_weights, minutes_to_live = zip(*evictions)
    with tf.device("/CPU:0"):
        steps = tf.stack([tf.cast(step, tf.int64) for step in steps])
    with tf.device(tables[0].device):
        return library().snapshot_tables(
            tables=tables,
            steps=steps,
            changes_only=changes_only,
            evictions=list(kinds),
            steps_to_live=list(steps_to_live),
            l2_weights=list(l2_weights),
            minutes_to_live=list(minutes_to_live),
        )


def full_save_id(table):
    """The number of the last full save that changes can be added to; 0: there is none."""
    with tf.device(table.device):
        return library().full_save_id(table=table)


def save_table(table, prefix, snapshot, part=0, num_parts=1):
    """Writes the table's rows beside the checkpoint, and returns the manifest of their files."""
    with tf.device(table.device):
        return library().save_table(
            table=table, prefix=prefix, snapshot=snapshot, part=part, num_parts=num_parts
        )


def merge_manifests(manifests):
    """Merges a vector of the manifests of a table's parts into one manifest."""
    with tf.device("/CPU:0"):
        return library().merge_manifests(manifests=manifests)


def sees_files(prefixes, manifests):
    """Which checkpoints, a vector of prefixes, lie where this process sees their files: those of
    the table of a manifest, or the index, where that is empty."""
    with tf.device("/CPU:0"):
        return library().sees_files(prefixes=prefixes, manifests=manifests)


def verify_table(table, prefix, manifest, index=0, count=1, as_start=False):
    """Fails if `restore_table` would."""
    prefix, manifest = _on_host(prefix, manifest)
    with tf.device(table.device):
        return library().verify_table(
            table=table,
            prefix=prefix,
            manifest=manifest,
            index=index,
            count=count,
            as_start=as_start,
        )


def restore_table(table, prefix, manifest, index=0, count=1, as_start=False):
    """Gives the table the keys of rank `index` of `count`, and no others. Its files were verified
    just now, unless they are what another training starts from (`as_start`): then slots start anew,
    and new keys as the table has it."""
    prefix, manifest = _on_host(prefix, manifest)
    with tf.device(table.device):
        return library().restore_table(
            table=table,
            prefix=prefix,
            manifest=manifest,
            index=index,
            count=count,
            verified=not as_start,
            as_start=as_start,
        )


def _on_host(*strings):
    """Strings as tensors in host memory. A constant on the table's device could be on a GPU, which
    holds no strings."""
    with tf.device("/CPU:0"):
        return [tf.convert_to_tensor(string, tf.string) for string in strings]
