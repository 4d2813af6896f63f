"""Gradients of one rank's batch -> gradients of the batch of all ranks."""

import tensorflow as tf

from group_embedding.ops.deferred import defer_structure, is_deferring
from group_embedding.ranks.sharding.sharded_table import exchange_of


def average_gradients(exchange, gradients, variables):
    """The mean over the ranks of the gradients of their losses.

    With losses that are means over B/N samples each, this is the gradient of the mean over all B.

    Args:
        gradients: tensors, IndexedSlices or None, one per variable.
        variables: the gradient of a table that is spread over the ranks already is that mean, on
            the owner of each row, and stays the tensor it is, so that the op that made it can be
            replaced by one that updates too. All others are averaged: tensors in one collective,
            IndexedSlices by gathering them.
    """
    reduced = list(gradients)
    dense, sparse = [], []
    for i, (gradient, variable) in enumerate(zip(gradients, variables)):
        if gradient is None or exchange_of(variable) is not None:
            continue
        if isinstance(gradient, tf.IndexedSlices):
            sparse.append(i)
        else:
            dense.append(i)
    if dense:
        tensors = [tf.convert_to_tensor(gradients[i]) for i in dense]
        of_tables = _gradients_sent(exchange, gradients, variables)
        for i, tensor in zip(dense, _average_tensors(exchange, tensors, of_tables)):
            reduced[i] = tensor
    if sparse:
        of_tables = _gradients_sent(exchange, gradients, variables)
        with tf.control_dependencies(_sends(of_tables)):
            slices = _gather_slices(exchange, [gradients[i] for i in sparse])
        for i, gathered in zip(sparse, slices):
            reduced[i] = _divide(gathered, exchange.num_ranks)
    return reduced


def _average_tensors(exchange, tensors, of_tables):
    def average(given):
        tensors, of_tables = given
        with tf.control_dependencies(_sends(of_tables)):
            return exchange.average(tensors, "average_gradients")

    if not is_deferring():
        return average((tensors, of_tables))
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    given = tensors, of_tables
    return defer_structure("the average of dense gradients", average, given, specs=specs)


def _gradients_sent(exchange, gradients, variables):
    """The gradients of tables over GPUs, each as a tensor."""
    if exchange.nccl_ranks is None:
        return []
    of_tables = [
        gradient
        for gradient, variable in zip(gradients, variables)
        if gradient is not None and exchange_of(variable) is not None
    ]
    return [g.values if isinstance(g, tf.IndexedSlices) else g for g in of_tables]


def _sends(of_tables):
    """The ops after which the gradients of tables over GPUs are on their way.

    Horovod's kernels must not get between: one of them would hold its GPU until the other ranks run
    theirs, and whatever CUDA does first that waits for the GPU, such as to load a kernel or to take
    memory, would keep this rank from the exchange, for which those ranks wait."""
    ops = []
    for tensor in of_tables:
        if isinstance(tensor, tf.__internal__.EagerTensor):  # it has been sent
            continue
        # What adds the ranks' gradients up may be replaced by an update; it waits for the exchange.
        is_sum = tensor.op.type == "GroupEmbedding>GroupLookupGrad"
        ops += [made.op for made in tensor.op.inputs] if is_sum else [tensor.op]
    return ops


def _gather_slices(exchange, slices):
    values = exchange.allgather_gradients([s.values for s in slices], "gather_gradient_values")
    indices = exchange.allgather_gradients([s.indices for s in slices], "gather_gradient_indices")
    return [tf.IndexedSlices(v, i, s.dense_shape) for v, i, s in zip(values, indices, slices)]


def _divide(slices, num_ranks):
    values = slices.values / tf.cast(num_ranks, slices.values.dtype)
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)
