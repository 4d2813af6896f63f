"""Which gradients of tables come straight from a group's gradient op, so that one op can take its
place and do the update too."""

from typing import NamedTuple

import tensorflow as tf

from group_embedding.ops.autodiff import is_used


class Plan(NamedTuple):
    """How each gradient is applied, by its place in the list that was planned."""

    fused: list  # of (GroupLookupGrad op, {index of a table in its group: place})
    slices: list  # places


def plan(gradients):
    """The Plan for a list of `tf.IndexedSlices`.

    A group's gradient op is replaced only if nothing else in the graph uses what it makes, such as
    the concatenation of the gradients of a table that two groups looked up, or a user's own
    clipping: else it would run beside its replacement. Eager gradients have no op.
    """
    made, slices = {}, []
    for place, gradient in enumerate(gradients):
        op, table = _producer(gradient)
        if op is None or _is_needed(op) or table in made.get(op, {}):
            slices.append(place)
        else:
            made.setdefault(op, {})[table] = place
    return Plan(list(made.items()), slices)


def _producer(gradient):
    """The GroupLookupGrad that made an IndexedSlices, and for which of its tables."""
    values, indices = _behind_gates(gradient.values), _behind_gates(gradient.indices)
    if values is None or indices is None or values.op is not indices.op:
        return None, None
    op = values.op
    if op.type != "GroupLookupGrad":
        return None, None
    num_tables = len(op.get_attr("dims"))
    table = indices.value_index
    return (op, table) if values.value_index == table + num_tables else (None, None)


def _behind_gates(tensor):
    """What an Identity passes on; None for an eager tensor."""
    if not isinstance(tensor, tf.Tensor) or not hasattr(tensor, "graph") or _is_eager(tensor):
        return None
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _is_eager(tensor):
    return isinstance(tensor, tf.__internal__.EagerTensor)


def _is_needed(op):
    return any(is_used(output) for output in op.outputs)
