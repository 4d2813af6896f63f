"""The op that looks for ids outside their tables before any table is read or changed."""

import tensorflow as tf

from group_embedding.ops._library import library

NOT_CHECKED = -1  # the number of rows of a table whose rows are found by key


def check_ids(
    batch, num_rows, table_of_feature, combiners, table_names, feature_names, *, prune_negative
):
    """Raises the error of the first id of `batch` that is outside its table.

    Args:
        batch: ops.group_ids.Batch. On a GPU it is copied to host memory, which waits for the GPU.
        num_rows: per table an int, an int64 scalar tensor, or NOT_CHECKED.
        table_of_feature: for each feature, the index into `num_rows`.

    Returns:
        In a graph the tf.Operation, which whoever reads a table has to wait for; eagerly None.
    """
    with tf.device("/CPU:0"):
        return library().check_ids(
            batch=batch.buffer,
            sizes=batch.sizes,
            num_rows=tf.stack([tf.cast(rows, tf.int64) for rows in num_rows])
            if any(tf.is_tensor(rows) for rows in num_rows)
            else tf.constant(num_rows, tf.int64),
            table_of_feature=table_of_feature,
            combiners=combiners,
            table_names=table_names,
            feature_names=feature_names,
            weighted=batch.weighted,
            prune_negative=prune_negative,
        )
