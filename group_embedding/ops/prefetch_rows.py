"""The op that moves rows of the next batch to the first tier of their tables, ahead of time."""

import tensorflow as tf

from group_embedding.ops._library import library


def prefetch_rows(tables, batch, table_of_feature):
    """Begins to move rows of a batch's keys, and does not wait for it. No value changes.

    Args:
        tables: for each table of the group its EmbeddingVariable, or None; those in several tiers
            are of one device.
        batch: ops.group_ids.Batch.
        table_of_feature: for each feature, the index into `tables`.

    Returns:
        The batch, which is to be looked up: in a graph its rows move when it is asked for.
    """
    tiered = [t for t, table in enumerate(tables) if table is not None and table.has_tiers]
    if not tiered:
        return batch
    place = {t: i for i, t in enumerate(tiered)}
    with tf.device(tables[tiered[0]].device):
        buffer = library().prefetch_rows(
            tables=[tables[t].table_handle for t in tiered],
            batch=batch.buffer,
            sizes=batch.sizes,
            table_of_feature=[place.get(t, -1) for t in table_of_feature],
            weighted=batch.weighted,
        )
    return batch._replace(buffer=buffer)


@tf.RegisterGradient("GroupEmbedding>BringRows")  # in graphs that older versions saved
@tf.RegisterGradient("GroupEmbedding>PrefetchRows")
def _prefetch_rows_grad(op, buffer_grad):
    """The gradient of the batch's weights, which move through as they are."""
    return [*[None] * op.get_attr("num_tables"), buffer_grad, None]
