"""The ops that tell a publisher what changed in keyed tables."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from group_embedding.ops._library import library

for _name in ("FollowChanges", "SnapshotChanges", "ReadChanges", "DropChanges"):
    tf.no_gradient(f"GroupEmbedding>{_name}")


class Changes(NamedTuple):
    """The changes of one table since a mark.

    Attributes:
        file: The content of a table file, a string.
        sum: int64 [5]: bytes, checksum, file id, rows, erased keys.
        mark: int64 [2], for `follow_changes`.
    """

    file: tf.Tensor
    sum: tf.Tensor
    mark: tf.Tensor


def follow_changes(table, follower, mark=None):
    """Sets the mark from which the next changes of a follower, a number above 0, are counted.

    Args:
        mark: of `Changes`; None: that of now.
    """
    with tf.device("/CPU:0"):
        mark = tf.convert_to_tensor(np.zeros(0) if mark is None else mark, tf.int64)
    with tf.device(table.device):
        return library().follow_changes(table=table, follower=_on_host(follower), mark=mark)


def snapshot_changes(tables, follower, step, parts, abandoned_seconds=60.0):
    """Takes a snapshot of the changes of tables of one device, and begins to read it.

    Args:
        step: of the trainer; -1: none.
        parts: per table, its part and the number of parts.
        abandoned_seconds: a save's snapshot that was taken before so long is dropped, if no save
            has written a table since.

    Returns:
        A bool: False if a table has another snapshot, and nothing was done.
    """
    with tf.device(tables[0].device):
        return library().snapshot_changes(
            tables=tables,
            follower=_on_host(follower),
            step=_on_host(step),
            parts=[part for part, _ in parts],
            num_parts=[num_parts for _, num_parts in parts],
            abandoned_seconds=abandoned_seconds,
        )


def read_changes(table, follower):
    """The `Changes` of the table since the snapshot, once they are in memory."""
    with tf.device(table.device):
        return Changes(*library().read_changes(table=table, follower=_on_host(follower)))


def drop_changes(table, follower, unfollow=False):
    """Frees changes that were not read; `unfollow`: forgets the follower, too."""
    with tf.device(table.device):
        return library().drop_changes(table=table, follower=_on_host(follower), unfollow=unfollow)


def _on_host(number):
    with tf.device("/CPU:0"):
        return tf.convert_to_tensor(number, tf.int64)
