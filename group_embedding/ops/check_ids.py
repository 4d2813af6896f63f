"""The op that looks for ids outside their tables before a call reads or changes any table."""

import tensorflow as tf

from group_embedding.ops._library import library

NOT_CHECKED = -1  # the number of rows of a table whose ids are not checked


def check_ids(groups, batches, num_rows):
    """The batches, once all their ids have been found in their tables. Else it raises the error of
    the first that is outside.

    Args:
        groups: each `ops.lookup_group.LookupGroup` of a call.
        batches: the ops.group_ids.Batch of each group. Those on a GPU are copied to host memory,
            which waits for the GPU.
        num_rows: for each group and each of its tables, an int, an int64 scalar tensor, or
            NOT_CHECKED.
    """
    starts = [sum(map(len, num_rows[:group])) for group in range(len(batches))]
    with tf.device("/CPU:0"):
        checked = library().check_ids(
            batches=[batch.buffer for batch in batches],
            sizes=[batch.sizes for batch in batches],
            num_rows=_vector(_joined(num_rows)),
            num_features=[len(group.names) for group in groups],
            table_of_feature=[
                start + table
                for start, group in zip(starts, groups)
                for table in group.table_of_feature
            ],
            combiners=_joined(group.combiners for group in groups),
            table_names=[table.name for group in groups for table in group.tables],
            feature_names=_joined(group.names for group in groups),
            weighted=[batch.weighted for batch in batches],
            prune_negative=groups[0].prune_negative,
        )
    return [batch._replace(sizes=sizes) for batch, sizes in zip(batches, checked)]


def _joined(lists):
    return [item for of_group in lists for item in of_group]


def _vector(numbers):
    if not any(tf.is_tensor(number) for number in numbers):
        return tf.constant(numbers, tf.int64)
    return tf.stack([tf.cast(number, tf.int64) for number in numbers])
