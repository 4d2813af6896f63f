"""The ops that join rows of which each rank sent some columns, and split their gradients."""

import tensorflow as tf

from group_embedding.ops import autodiff
from group_embedding.ops._library import library
from group_embedding.ops.pack_rows import as_slices


def join_columns(parts, num_ranks):
    """Per table float32 [ranks * rows, dim / ranks], rank after rank -> per table [rows, dim]."""
    with tf.device("/CPU:0"):
        return library().join_columns(parts=parts, num_ranks=num_ranks).rows


@tf.RegisterGradient("GroupEmbedding>JoinColumns")
def _join_columns_grad(op, *grads):
    """Per table, the parts of the rows that have a gradient."""
    *grads, _ = grads  # of num_rows
    reached = set(autodiff.differentiated(grads))
    slices = [as_slices(grad, t in reached, op.outputs[t].shape[1]) for t, grad in enumerate(grads)]
    with tf.device("/CPU:0"):
        values, indices = library().split_columns(
            rows=[one.values for one in slices],
            indices=[one.indices for one in slices],
            num_rows=op.outputs[-1],
            num_ranks=op.get_attr("num_ranks"),
        )
        return [
            tf.IndexedSlices(v, i, tf.shape(parts, out_type=tf.int64))
            for v, i, parts in zip(values, indices, op.inputs)
        ]
