"""The op that looks up and combines the rows of a group of features, and its gradient."""

import functools
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.ops import resource_variable_ops

from group_embedding.ops import autodiff
from group_embedding.ops._library import library
from group_embedding.ops.locate_rows import train_located
from group_embedding.ops.lookup_group import GROUP_ATTRS
from group_embedding.ops.select_samples import select_samples
from group_embedding.ops.variable_handles import (
    differentiated_here,
    is_packed,
    packed,
    packed_here,
)

# A lookup only reads its variables: functions need not put lookups of one table into an order.
auto_control_deps_utils.register_read_only_resource_op("GroupEmbedding>GroupLookup")
auto_control_deps_utils.register_read_only_resource_op("GroupEmbedding>GroupLookupGrad")
autodiff.let_unused_op_go("GroupEmbedding>GroupLookupGrad")
autodiff.end_with_function("GroupEmbedding>GroupLookup")
autodiff.end_with_function("GroupEmbedding>GroupLookupGrad")

# The attributes that a lookup op, its gradient and its update have in common.
SHARED_ATTRS = (*GROUP_ATTRS, "concat", "weighted")


def group_lookup(group, batch, concat):
    """Looks a batch up in this process's tables of one dtype.

    Args:
        group: an `ops.lookup_group.LookupGroup`.
        batch: an `ops.group_ids.Batch` of row numbers.
        concat: whether the results are one tensor.

    Returns:
        A list with a [samples, dim] tensor per feature, or with one [samples, sum of dims].
    """
    keyed = group.keyed
    handles = [table.tensor() for table in group.tables]
    inputs = packed(handles)
    look_up = functools.partial(
        library().group_lookup,
        tables=inputs,
        batch=batch.buffer,
        sizes=batch.sizes,
        keyed_tables=packed([group.tables[t].keyed.table_handle for t in keyed]),
        keyed=keyed,
        num_outputs=1 if concat else len(group.names),
        concat=concat,
        weighted=batch.weighted,
        constant_weights=batch.constant_weights,
        **group.attrs(),
    )
    if len(inputs) == len(handles):
        return look_up()
    return _recorded(look_up, handles, batch.buffer)


def _recorded(look_up, handles, buffer):
    """Calls an op whose handles are one tensor, and tells gradient tapes of each handle."""
    with record.stop_recording():
        outputs = look_up()

    def gradient(*grads):
        op = outputs[0].op
        differentiated_here(op)
        of_rows, weight_grad = _gradients(op, grads, op.inputs[batch_index(op) + 2 :])
        return [*_of_tables(op, of_rows, handles), weight_grad]

    record.record_operation("GroupLookup", outputs, [*handles, buffer], gradient)
    return outputs


@tf.RegisterGradient("GroupEmbedding>GroupLookup")
def _group_lookup_grad(op, *grads):
    return gradients_of_inputs(op, grads, op.inputs[batch_index(op) + 2 :])


def batch_index(op):
    """The index of `batch` among the inputs of an op that has the attributes of GroupLookup: its
    tables are before, which may be one input for all, and `sizes` is behind."""
    return len(op.get_attr("table_types"))


def gradients_of_inputs(op, grads, keyed_tables):
    """The gradients of a list of tables, and of an op's batch, sizes and keyed_tables, given those
    of its outputs. The op has the attributes of GroupLookup."""
    tables = op.inputs[: batch_index(op)]
    of_rows, weight_grad = _gradients(op, grads, keyed_tables)
    if not is_packed(tables):
        table_grads = _of_tables(op, of_rows, tables)
    elif tables[0].op.type == "GroupEmbedding>PackHandles":
        table_grads = [of_rows.indices[0]]  # see _pack_handles_grad
    else:  # the function updates its tables itself: see variable_handles.take_as_one
        table_grads = [None]
    return [*table_grads, weight_grad, None, *[None] * len(keyed_tables)]


@tf.RegisterGradient("GroupEmbedding>PackHandles")
def _pack_handles_grad(op, grad):
    """The gradients of the tables behind a tensor of handles, which is one lookup's. `grad` is an
    output of the GroupLookupGrad that computes them."""
    while grad.op.type == "Identity":
        grad = grad.op.inputs[0]
    made, num_tables = grad.op, len(op.inputs)
    indices, values = made.outputs[:num_tables], made.outputs[num_tables:]
    reached = _reached(made, made.get_attr("grad_features"))
    return _of_tables(made, _OfRows(indices, values, reached), op.inputs)


class _OfRows(NamedTuple):
    """The gradients of the rows of a group's tables."""

    indices: list
    values: list
    reached: set  # the tables that have a gradient


def _gradients(op, grads, keyed_tables):
    """Computes the gradients of a lookup's rows by GroupLookupGrad, and that of the batch's
    weights, from those of its outputs."""
    at = batch_index(op)
    buffer, sizes = op.inputs[at : at + 2]
    keyed = op.get_attr("keyed")
    if keyed:
        train_located(buffer)
    differentiated = autodiff.differentiated(grads)
    samples = samples_with_gradient(op, grads)
    if samples:
        buffer, sizes = select_samples(buffer, sizes, samples, weighted=op.get_attr("weighted"))
    with autodiff.after(op):
        made = library().group_lookup_grad(
            tables=packed_here(op.inputs[:at]),
            batch=buffer,
            sizes=sizes,
            grads=[
                grads[i].values if i in samples else tf.convert_to_tensor(grads[i])
                for i in differentiated
            ],
            grad_features=differentiated,
            num_tables=len(op.get_attr("dims")),
            keyed_tables=packed_here(keyed_tables),
            keyed=keyed,
            **{name: op.get_attr(name) for name in SHARED_ATTRS},
        )
    if isinstance(op, tf.Operation):
        autodiff.end_with_gradient(made.indices[0].op)
    # The buffer's gradient is that of its weights part: ids and row splits have none.
    weight_grad = made.weight_grad if _has_weight_gradient(op) else None
    return _OfRows(made.indices, made.values, _reached(op, differentiated)), weight_grad


def _has_weight_gradient(op):
    """Other ops with the attributes of GroupLookup have none of `constant_weights`."""
    is_lookup = op.type == "GroupEmbedding>GroupLookup"
    return op.get_attr("weighted") and not (is_lookup and op.get_attr("constant_weights"))


def _reached(op, differentiated):
    """The tables whose rows have a gradient where so many features' outputs have one."""
    if op.get_attr("concat"):
        return set(range(len(op.get_attr("dims"))))
    table_of_feature = op.get_attr("table_of_feature")
    return {table_of_feature[i] for i in differentiated}


def table_gradients(op, made, tables, differentiated):
    """The tf.IndexedSlices of each table; None: no gradient has reached it.

    Args:
        op: with the attributes of GroupLookup.
        made: what GroupLookupGrad returned.
        tables: the handles of the tables, or the tables.
        differentiated: the features that a gradient has reached.
    """
    of_rows = _OfRows(made.indices, made.values, _reached(op, differentiated))
    return _of_tables(op, of_rows, tables)


def _of_tables(op, of_rows, tables):
    """The gradient of each table, or None."""
    keyed = set(op.get_attr("keyed"))
    grads = [None] * len(tables)
    for t in of_rows.reached:
        shape = shape_of_table(tables[t], t in keyed)
        grads[t] = tf.IndexedSlices(of_rows.values[t], of_rows.indices[t], shape)
    return one_per_table(tables, grads)


def one_per_table(tables, gradients):
    """The gradients, of which each table has one. A table that is looked up with several max_norms
    is several tables of the op: its first one gets the sum, and the others get None. Autodiff would
    put their rows behind each other, so that rows were not unique.

    Args:
        tables: the tensors that autodiff knows the tables by.
        gradients: for each, tf.IndexedSlices of unique ascending rows, or None.
    """
    of_table = {}
    for i, (table, gradient) in enumerate(zip(tables, gradients)):
        if gradient is not None:
            of_table.setdefault(table.ref(), []).append(i)
    gradients = list(gradients)
    for first, *others in of_table.values():
        if others:
            gradients[first] = _sum_of_rows([gradients[i] for i in (first, *others)])
            for i in others:
                gradients[i] = None
    return gradients


def _sum_of_rows(gradients):
    """The sum of tf.IndexedSlices of one table, its rows unique and ascending."""
    indices = tf.concat([gradient.indices for gradient in gradients], 0)
    rows = tf.sort(tf.unique(indices).y)
    segments = tf.searchsorted(rows, indices)
    values = tf.concat([gradient.values for gradient in gradients], 0)
    sums = tf.math.unsorted_segment_sum(values, segments, tf.size(rows))
    return tf.IndexedSlices(sums, rows, gradients[0].dense_shape)


def samples_with_gradient(op, grads):
    """{feature: its samples that a gradient has reached}, of features whose gradient says so. The
    others' rows stay out of the tables' gradients. (Weights that have a gradient all have one.)"""
    if op.get_attr("concat") or _has_weight_gradient(op):
        return {}
    sparse = {f: grad for f, grad in enumerate(grads) if isinstance(grad, tf.IndexedSlices)}
    return {f: tf.cast(grad.indices, tf.int64) for f, grad in sparse.items()}


def shape_of_table(table, is_keyed=False):
    """The shape of a table's gradient: that of the table as the op receives it."""
    if is_keyed:  # [0, dim], of the type that tf.cond expects of a branch's gradients
        return resource_variable_ops.variable_shape(table)
    if table.dtype == tf.resource:
        return resource_variable_ops.variable_shape(table, out_type=tf.int64)
    return tf.shape(table, out_type=tf.int64)
