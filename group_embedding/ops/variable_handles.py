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

import atexit
import dataclasses
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
# {the ids of handles: the tensor of all}; it lives as long as a function that captured it.
_known_packs: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
# {the id of such a tensor: its handles}. They are no attribute of it: TensorFlow 2.15 never frees
# attributes of eager tensors, and tables would live as long as the process. Finalizers remove them;
# at exit, when finalizers run no more, all go, so that tables free their memory and files.
_handles_of: dict[int, tuple[tf.Tensor, ...]] = {}
atexit.register(_handles_of.clear)


@dataclasses.dataclass
class _Packs:
    """The PackHandles ops of a function's graph.

    Attributes:
        captured: the ids of handles that the function captured for such an op first. It captured
            the others for another reason, such as that the variable is an argument.
        differentiated: their outputs whose lookups a tape differentiated.
    """

    captured: set[int] = dataclasses.field(default_factory=set)
    differentiated: list[tf.Tensor] = dataclasses.field(default_factory=list)

    @staticmethod
    def of(graph: tf.Graph) -> _Packs:
        packs = getattr(graph, "_group_embedding_packs", None)
        if packs is None:
            packs = graph._group_embedding_packs = _Packs()
        return packs


def captured_as_one(handles: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the inputs of an op, no lookup, for a list of handles: in a function one tensor of
    all, where `_can_be_one`; else the list as it is."""
    handles = list(handles)
    return [_known_pack(handles)] if _can_be_one(handles) else handles


def packed(handles: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the inputs of a lookup for a list of handles, or of tables that are tensors: under a
    tape one tensor, which `take_as_one` can replace later, where `_can_be_one`; else the list as it
    is, such as in functions that serve."""
    handles = list(handles)
    if not (record.could_possibly_record() and _can_be_one(handles)):
        return handles
    graph = tf.compat.v1.get_default_graph()
    before = {id(outer) for outer, _ in graph.captures}
    _Packs.of(graph).captured.update(id(handle) for handle in handles if id(handle) not in before)
    with record.stop_recording():
        return [library().pack_handles(handles=handles)]


def packed_here(inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The inputs of a lookup as those of an op of the graph at hand, which may be the gradient of a
    branch, a loop or a function with the lookup: it has the handles, but no tensor that is made
    inside. In the gradient of a function they are the handles that the function captured, by which
    TensorFlow knows that a call of the gradient reads them."""
    inputs = list(inputs)
    if tf.executing_eagerly():
        return inputs
    graph = tf.compat.v1.get_default_graph()
    of_lookup = next((t.graph for t in inputs if tf.is_symbolic_tensor(t)), graph)
    if of_lookup is graph:
        return inputs
    is_made = is_packed(inputs) and _is_made_here(inputs[0])
    handles = list(inputs[0].op.inputs) if is_made else inputs
    if type(graph) is type(of_lookup) is func_graph.FuncGraph:  # no branch, and no loop
        captured = {id(i): outer for outer, i in of_lookup.captures if _is_known_handle(outer)}
        handles = [captured.get(id(handle), handle) for handle in handles]
    return [library().pack_handles(handles=handles)] if is_made else handles


def is_packed(inputs: Sequence[tf.Tensor]) -> bool:
    """Returns whether the inputs of an op for a list of handles are one tensor of them."""
    return len(inputs) == 1 and inputs[0].dtype == tf.resource and inputs[0].shape.rank == 1


def differentiated_here(op: tf.Operation) -> None:
    """Notes that a tape differentiates a lookup in the graph at hand, which is the lookup's own."""
    graph = tf.compat.v1.get_default_graph()
    if op.graph is graph:
        _Packs.of(graph).differentiated.extend(filter(_is_made_here, op.inputs))


def take_as_one(written: Sequence[tf.Tensor]) -> None:
    """To be called when the graph at hand updates the tables of some handles: lookups of any of
    these, which it has differentiated, take all their tables by one captured tensor from now on."""
    if not _is_function():
        return
    graph = tf.compat.v1.get_default_graph()
    external = {id(inner): outer for outer, inner in graph.captures}
    of_written = set(map(id, written))
    packs = _Packs.of(graph)
    left = []
    for pack in {id(pack): pack for pack in packs.differentiated}.values():
        handles = [external[id(inner)] for inner in pack.op.inputs]
        if of_written.isdisjoint(map(id, handles)):
            left.append(pack)
            continue
        _replace(pack, graph.capture(_known_pack(handles)))
        _let_go(graph, packs.captured, dict(zip(map(id, handles), pack.op.inputs)))
    packs.differentiated = left


def _replace(tensor, other):
    """Gives all ops that take a tensor another in its place."""
    for op in set(tensor.consumers()):
        for i, taken in enumerate(op.inputs):
            if taken is tensor:
                op._update_input(i, other)


def _can_be_one(handles):
    """Returns whether the function at hand can capture handles as one tensor. A SavedModel wants
    variables one by one; replicas of a strategy have one each."""
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
        _handles_of[id(pack)] = tuple(handles)
        weakref.finalize(pack, _handles_of.pop, id(pack)).atexit = False
        _known_packs[key] = pack
    return pack


def _let_go(graph, captured, inner_of):
    """The function no longer captures handles, {id: tensor in the function}, that it captured for a
    pack and that nothing takes."""
    unused = {
        id(inner) for handle, inner in inner_of.items() if handle in captured and _is_unused(inner)
    }
    for handle, inner in inner_of.items():
        if id(inner) in unused:
            graph._function_captures.pop(handle)
            captured.discard(handle)
    graph.inputs[:] = [tensor for tensor in graph.inputs if id(tensor) not in unused]


def _is_unused(inner):
    return all(
        op.type == _PACK_OP and not autodiff.is_used(op.outputs[0]) for op in inner.consumers()
    )


def _resolve_packs(op, reads, writes):
    """Adds to the resources that an op reads or writes all others that stand for the variables of
    its packs: handles that the function captures too, and packs that share a variable."""
    if op.type == _PACK_OP:  # reads no variable: what takes its output does
        touched = bool(reads or writes)
        reads.clear()
        writes.clear()
        return touched
    if not isinstance(op.graph, func_graph.FuncGraph):
        return False
    # TensorFlow takes what is written out of what is read.
    written = [t for t in _alike_to_packs(op.graph, writes) if t not in writes]
    writes.update(written)
    read = [t for t in _alike_to_packs(op.graph, reads) if t not in reads and t not in writes]
    reads.update(read)
    return bool(written or read)


def _alike_to_packs(graph, resources):
    """The tensors that may share a variable with the packs among some resources."""
    packs = [tensor for tensor in resources if is_packed([tensor])]
    return [tensor for pack in packs for tensor in _alike(graph, pack)]


def _alike(graph, pack) -> Iterator[tf.Tensor]:
    """The tensors of a function's graph that may share a variable with a pack. What a function is
    given as an argument may be any variable."""
    captured = {id(inner): outer for outer, inner in graph.captures}
    if _is_made_here(pack):
        inner = pack.op.inputs
        yield from inner
        handles = {id(captured[id(tensor)]) for tensor in inner if id(tensor) in captured}
    else:
        handles = _handles_behind(captured.get(id(pack)))
    for tensor in graph.inputs:
        if tensor is pack or tensor.dtype != tf.resource:
            continue
        outer = captured.get(id(tensor))
        if outer is None or not handles.isdisjoint(_handles_behind(outer)):
            yield tensor


def _handles_behind(outer):
    """The ids of the handles that a captured tensor stands for."""
    return set(map(id, _handles_of.get(id(outer), (outer,))))


def _is_made_here(tensor):
    return tensor.op.type == _PACK_OP


register_acd_resource_resolver(_resolve_packs)
