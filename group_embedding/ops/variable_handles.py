"""Handles of many variables as one tensor, so that a function captures one tensor and not hundreds.

A call of a function costs the host microseconds for each tensor that the function captures, and a
training step captures three or more for each table: the table and its slots.

An op that updates variables takes their handles as one captured tensor from the first. A lookup
cannot know, when it is made, who differentiates it: from outside of its function, TensorFlow asks
for a gradient for each tensor that the function captures, and a SavedModel has its variables one by
one. So the lookup takes a tensor that an op of the function packs, and the function captures the
handles. When the same function turns out to update tables of the lookup, `take_as_one` gives the
lookup and its gradient the captured pack instead, and the function lets go of the handles.

    lookup made                                  tables updated
    handle 1 ──┐                                 pack (captured) ──> lookup ──> gradient ──> update
    handle 2 ──┤ PackHandles ──> lookup
    handle 3 ──┘

Functions order ops by the tensors of handles that the ops take. `_resolve` tells TensorFlow which
other tensors of the function stand for variables of a pack.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import func_graph
from tensorflow.python.framework.auto_control_deps import register_acd_resource_resolver
from tensorflow.python.saved_model import save_context

from group_embedding.ops import autodiff
from group_embedding.ops._library import library

_PACK_OP = "GroupEmbedding>PackHandles"
# Collection of a function's graph: the outputs of PackHandles whose lookups a tape differentiated.
_DIFFERENTIATED = "group_embedding_differentiated_packs"
# {the ids of handles: the tensor of all}; it lives as long as a function that captured it.
_known_packs: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def captured_as_one(handles: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the inputs of an op, no lookup, for a list of handles: in a function one tensor of
    all, where `_can_be_one`; else the list as it is."""
    handles = list(handles)
    return [_known_pack(handles)] if _can_be_one(handles) else handles


def packed(handles: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the inputs of a lookup for a list of handles, or of tables that are tensors: what
    `take_as_one` can replace later, where `_can_be_one`; else the list as it is."""
    handles = list(handles)
    if not _can_be_one(handles):
        return handles
    with record.stop_recording():
        return [library().pack_handles(handles=handles)]


def is_packed(inputs: Sequence[tf.Tensor]) -> bool:
    """Returns whether the inputs of an op for a list of handles are one tensor of them."""
    return len(inputs) == 1 and inputs[0].dtype == tf.resource and inputs[0].shape.rank == 1


def differentiated_here(op: tf.Operation) -> None:
    """Notes that a tape differentiates a lookup in the graph at hand, which is the lookup's own."""
    graph = tf.compat.v1.get_default_graph()
    if op.graph is graph:
        graph.get_collection_ref(_DIFFERENTIATED).extend(filter(_is_made_here, op.inputs))


def take_as_one(written: Sequence[tf.Tensor]) -> None:
    """To be called when the graph at hand updates the tables of some handles: lookups of any of
    these, which it has differentiated, take all their tables by one captured tensor from now on."""
    if not _is_function():
        return
    graph = tf.compat.v1.get_default_graph()
    external = {id(inner): outer for outer, inner in graph.captures}
    written = set(map(id, written))
    packs = graph.get_collection_ref(_DIFFERENTIATED)
    left = []
    for pack in {id(pack): pack for pack in packs if pack.graph is graph}.values():
        handles = [external[id(inner)] for inner in pack.op.inputs]
        if written.isdisjoint(map(id, handles)):
            left.append(pack)
            continue
        captured = graph.capture(_known_pack(handles))
        for op in set(pack.consumers()):
            for i, tensor in enumerate(op.inputs):
                if tensor is pack:
                    op._update_input(i, captured)
        for outer, inner in dict(zip(map(id, handles), zip(handles, pack.op.inputs))).values():
            _let_go(graph, outer, inner)
    packs[:] = left


def _can_be_one(handles):
    """Whether handles in the function at hand are known beforehand, so that it can capture them as
    one tensor. A SavedModel wants variables one by one; replicas of a strategy have one each."""
    return (
        len(handles) > 1
        and _is_function()
        and not save_context.in_save_context()
        and not tf.distribute.has_strategy()
        and all(map(_is_known_handle, handles))
    )


def _is_function():
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and isinstance(graph, func_graph.FuncGraph)


def _is_known_handle(handle):
    is_eager = isinstance(handle, tf.__internal__.EagerTensor)
    return is_eager and handle.dtype == tf.resource


def _known_pack(handles):
    """The eager tensor of all handles: one for all functions, so that they order by it."""
    key = tuple(map(id, handles))
    pack = _known_packs.get(key)
    if pack is None:
        with tf.init_scope():
            pack = library().pack_handles(handles=handles)
        pack._ge_handles = tuple(handles)
        _known_packs[key] = pack
    return pack


def _let_go(graph, handle, inner):
    """The function no longer captures a handle that nothing in it takes."""
    if all(op.type == _PACK_OP and not autodiff.is_used(op.outputs[0]) for op in inner.consumers()):
        graph._function_captures.pop(id(handle))
        graph.inputs[:] = [tensor for tensor in graph.inputs if tensor is not inner]


def _resolve_packs(op, reads, writes):
    """Adds to the resources that an op reads or writes all others that stand for the variables of
    its packs: handles that the function captures too, and packs that share a variable."""
    if op.type == _PACK_OP:  # reads no variable: what takes its output does
        touched = bool(reads or writes)
        reads.clear()
        writes.clear()
        return touched
    changed = False
    for resources in (reads, writes):
        for pack in [tensor for tensor in resources if is_packed([tensor])]:
            others = [t for t in _alike(op.graph, pack) if t not in reads and t not in writes]
            resources.update(others)
            changed = changed or bool(others)
    return changed


def _alike(graph, pack) -> Iterator[tf.Tensor]:
    """The tensors of a function's graph that share a variable with a pack."""
    if _is_made_here(pack):
        yield from pack.op.inputs
        members = {id(inner) for inner in pack.op.inputs}
        external = {id(inner): id(outer) for outer, inner in graph.captures}
        handles = {external.get(inner) for inner in members}
    else:
        outer = next((outer for outer, inner in graph.captures if inner is pack), None)
        handles = set(map(id, getattr(outer, "_ge_handles", ())))
    for outer, inner in graph.captures:
        of_outer = getattr(outer, "_ge_handles", (outer,))
        if inner is not pack and not handles.isdisjoint(map(id, of_outer)):
            yield inner


def _is_made_here(tensor):
    return tensor.op.type == _PACK_OP


register_acd_resource_resolver(_resolve_packs)
