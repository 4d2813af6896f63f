"""The collective calls in which this process waits, reported to the watch over ranks."""

import contextlib
import ctypes
from typing import NamedTuple

import tensorflow as tf

from group_embedding.ops._library import library, native

_TEXT_BYTES = 1 << 16
_NO_EXCHANGE = -1


class PendingCall(NamedTuple):
    """A call in which this process waits."""

    key: str  # the same on all ranks that make it
    description: str
    seconds: float  # since it began
    ranks: tuple = ()  # that make it; empty: all


def pending_calls(exchange_number=_NO_EXCHANGE):
    """The calls that wait in a HostExchange, by its number, and the calls that were marked here.

    Returns:
        A list of PendingCall.
    """
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    native().GroupEmbeddingPendingCalls(exchange_number, text, _TEXT_BYTES)
    calls = []
    for line in text.value.decode(errors="replace").splitlines():
        seconds, key, description = line.split("\t")
        calls.append(PendingCall(key, description, float(seconds)))
    return calls


@contextlib.contextmanager
def waits_in(key, description):
    """Inside, this process waits in such a call, which Python makes by itself."""
    native().GroupEmbeddingBeginCall(key.encode(), description.encode())
    try:
        yield
    finally:
        native().GroupEmbeddingEndCall(key.encode())


def marked(collective, tensors, name, what):
    """`collective(tensors, name)`, a list of tensors of a list of them, as a call in which this
    process waits: from when the first of `tensors` is there until the first of its results is.

    Gradients that flow through it are marked as well.

    Args:
        name: the same on all ranks; in a graph, its scope is added.
        what: a description of the call for messages.
    """
    scope = "" if tf.executing_eagerly() else _name_scope()
    key = f"{scope}/{name}" if scope else name
    first, *others = tensors
    try:
        results = collective([_mark(first, True, key, what), *others], name)
    except BaseException as error:  # eagerly: the call has failed
        native().GroupEmbeddingEndCall(key.encode())
        if not isinstance(error, tf.errors.OpError):
            raise
        line = what.partition("\n")[0]
        message = f"{error.message}; this rank was in {line}"
        raise type(error)(error.node_def, error.op, message) from error
    return [_mark(results[0], False, key, what), *results[1:]]


def _name_scope():
    return tf.compat.v1.get_default_graph().get_name_scope()


def _mark(tensor, begins, key, what):
    is_eager = tf.executing_eagerly()
    return library().mark_call(
        tensor=tensor,
        begins=begins,
        key=key,
        description=what,
        ends_with_step=not is_eager,
        scope="" if is_eager else _name_scope(),
    )


@tf.RegisterGradient("GroupEmbedding>MarkCall")
def _mark_call_grad(op, grad):
    """On the way back the call begins where it ended."""
    key = op.get_attr("key").decode()
    what = op.get_attr("description").decode()
    return _mark(grad, not op.get_attr("begins"), f"{key}/gradient", f"gradients of {what}")
