"""Calls of ops that XLA cannot compile, put off while a step is traced that XLA shall compile.

`training.make_step` traces a step once to find what XLA can compile. In that trace a lookup, its
gradient and an update of tables are not made: each leaves a `DeferredCall` and placeholders for its
results. They are made later, between the XLA programs, in the graph that runs.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from group_embedding.keras_compat import is_built_from_shapes


@dataclasses.dataclass(frozen=True, eq=False)
class DeferredCall:
    """One call of the trace.

    Attributes:
        name: what it does, for messages.
        position: how many ops the traced graph had before it.
        inputs: tensors of the traced graph.
        outputs: the placeholders of its results in the traced graph.
        run: takes the inputs' tensors in another graph, and returns tensors for the outputs.
        is_lookup: whether all that its inputs depend on runs before the first XLA program.
        has_any_rows: whether another batch has outputs of another shape, which XLA would compile
            anew for.
        route: for a lookup, does what can be done a step ahead: takes what `run` does, and returns
            a structure of tensors.
        run_routed: for a lookup, `run` of that structure.
    """

    name: str
    position: int
    inputs: list
    outputs: list
    run: Callable[..., Sequence[tf.Tensor]]
    is_lookup: bool = False
    has_any_rows: bool = False
    route: Callable[..., Any] | None = None
    run_routed: Callable[[Any], Sequence[tf.Tensor]] | None = None


class Trace:
    """The deferred calls of one traced graph.

    Args:
        graph: what is being traced.
        defer_lookup: takes the arguments of `lookups.flow.look_up`, and returns placeholders.
    """

    def __init__(self, graph, defer_lookup):
        self.graph, self.calls, self.defer_lookup = graph, [], defer_lookup


_current: contextvars.ContextVar[Trace | None] = contextvars.ContextVar(
    "group_embedding_deferred_calls", default=None
)


@contextlib.contextmanager
def deferring(defer_lookup: Callable[..., Any]) -> Iterator[Trace]:
    """Inside, in this thread, calls of the graph that is being traced are deferred."""
    trace = Trace(tf.compat.v1.get_default_graph(), defer_lookup)
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


@contextlib.contextmanager
def not_deferring() -> Iterator[None]:
    """Inside, calls are made: what runs a deferred call must not defer it again."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def defer_structure(
    name: str, run: Callable[[Any], Any], given: Any, **options: Any
) -> list[tf.Tensor]:
    """Defers a call whose input is a nested structure of tensors, variables and other values.

    Args:
        name: what the call does.
        run: takes a structure like `given`, with tensors in the place of tensors and variables, and
            returns the list of its results.
        given: lists, tuples and dicts of what `run` needs.
        options: `specs` and others of `defer`.
    """
    leaves = tf.nest.flatten(given)
    places = [i for i, leaf in enumerate(leaves) if tf.is_tensor(leaf)]

    def run_structure(*tensors):
        filled = list(leaves)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        with not_deferring():
            return run(tf.nest.pack_sequence_as(given, filled)) or []

    return defer(name, run_structure, [leaves[place] for place in places], **options)


def current_trace() -> Trace | None:
    """The trace to which lookups and updates made now are deferred; None: they are made. In the
    graphs by which Keras builds a model they are: those ask for shapes, and never run."""
    trace = _current.get()
    return None if trace is None or is_built_from_shapes() else trace


def is_deferring() -> bool:
    """Returns whether lookups and updates made now are deferred."""
    return current_trace() is not None


def defer(
    name: str,
    run: Callable[..., Sequence[tf.Tensor]],
    inputs: Sequence[Any],
    specs: Sequence[tf.TensorSpec] = (),
    **options: Any,
) -> list[tf.Tensor]:
    """Defers a call; returns the placeholders of its results.

    Args:
        name: what the call does, for messages.
        run: makes the call of the inputs' tensors, and returns its results.
        inputs: tensors of the traced graph.
        specs: of the results.
        options: others of `DeferredCall`.

    Raises:
        ValueError: the call is in a branch, in a loop or in a function of the step.
    """
    trace = _current.get()
    graph = tf.compat.v1.get_default_graph()
    if graph is not trace.graph:
        raise ValueError(
            f"{name}: expected it in the body of the compiled step itself, got it in "
            f"'{getattr(graph, 'name', 'a graph')}', a branch, a loop or a function of the step. "
            "Make it before them, or train with tf.keras.Model or a plain tf.function"
        )
    inputs = [tf.convert_to_tensor(tensor) for tensor in inputs]
    position = len(graph.get_operations())
    outputs = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
    trace.calls.append(DeferredCall(name, position, inputs, outputs, run, **options))
    return outputs
