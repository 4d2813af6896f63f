"""Ops that bring the rows of many tables into one buffer and back, each the other's gradient."""

import tensorflow as tf

from group_embedding.ops._library import library


def pack_rows(matrices, counts):
    """Per table [rows, dim], the rows for rank 0 first -> (one vector, int32 elements per rank).

    Args:
        counts: int64 [ranks, tables], rows of each table for each rank.
    """
    with tf.device("/CPU:0"):
        return library().pack_rows(matrices=matrices, counts=counts)


def unpack_rows(packed, counts, dims):
    """The inverse: a list of [rows, dim], one per table."""
    with tf.device("/CPU:0"):
        return library().unpack_rows(
            packed=packed, counts=counts, num_tables=len(dims), dims=list(dims)
        )


@tf.RegisterGradient("PackRows")
def _pack_rows_grad(op, packed_grad, _):
    *matrices, counts = op.inputs
    return [*unpack_rows(packed_grad, counts, [matrix.shape[1] for matrix in matrices]), None]


@tf.RegisterGradient("UnpackRows")
def _unpack_rows_grad(op, *matrix_grads):
    packed, _ = pack_rows([_as_matrix(grad) for grad in matrix_grads], op.inputs[1])
    return [packed, None]


def _as_matrix(grad):
    """The gradient of a matrix of which every row was looked up: its unique, ascending indices are
    all of them, so that the values are the matrix. PackRows checks their number."""
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad
