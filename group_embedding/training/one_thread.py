"""Functions whose ops are run by one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import summary_ops_v2

_EXECUTOR = "SINGLE_THREADED_EXECUTOR"
_REFUSAL = "Single-threaded executor does not support"
# Ops by which a device hands over arguments: it waits for no other.
_HANDING_OVER = {"_Arg", "Const", "Identity", "NoOp", "_Send", "_HostSend"}


class OnOneThread:
    """Calls a `tf.function`, whose ops one thread runs in turn where they all are on one device,
    and others at most hand over arguments.

    By itself TensorFlow hands ops to threads of a pool. Where ops only launch kernels of a GPU, or
    only take batches that are there, waking these threads takes longer than what they do. Ops of
    several devices that wait for each other would wait for ever.

    TensorFlow says where it has put the ops when it prepares a function for a kind of arguments. So
    the first calls of each kind are ordinary ones, until one for which nothing was prepared. It
    refuses functions with branches and loops that are no functions before any of their ops runs:
    they are called in the ordinary way from then on.

    Args:
        function: the `tf.function`.
        device_type: of that device, 'CPU' or 'GPU'. Where ops are on another, threads run them.
    """

    def __init__(self, function: Callable[..., Any], device_type: str):
        self._function, self._device_type = function, device_type
        self._parts = {}  # of kinds of arguments whose functions may change
        self._is_on_device = {}  # of other kinds: whether their functions are on the one device
        self.is_refused = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the function returns for these arguments, and raises what it raises."""
        if self.is_refused or summary_ops_v2._current_trace_context is not None:
            return self._function(*args, **kwargs)
        kind = _kind_of(args, kwargs)
        is_on_device = self._is_on_device.get(kind)
        if is_on_device is None:
            return self._learn(kind, args, kwargs)
        if is_on_device:
            try:
                with context.function_executor_type(_EXECUTOR):
                    return self._function(*args, **kwargs)
            except (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError) as error:
                if _REFUSAL not in str(error):
                    raise
                self.is_refused = True
        return self._function(*args, **kwargs)

    def _learn(self, kind, args, kwargs):
        """An ordinary call, after which the devices of this kind of arguments may be known."""
        collecting = context.context()
        collecting.enable_graph_collection()
        try:
            outputs = self._function(*args, **kwargs)
        finally:
            metadata = collecting.export_run_metadata()
            collecting.disable_graph_collection()
        parts = [_parts_of(function) for function in metadata.function_graphs]
        if parts or kind not in self._parts:
            self._parts[kind] = parts
        else:
            of_functions = self._parts.pop(kind)
            self._is_on_device[kind] = all(_is_on(self._device_type, of) for of in of_functions)
        return outputs


def _kind_of(args, kwargs):
    """Returns the types and devices of arguments. TensorFlow prepares a function for these, and for
    shapes, on which devices do not depend."""
    leaves = tf.nest.flatten((args, kwargs), expand_composites=True)
    return tuple(map(_kind_of_leaf, leaves))


def _kind_of_leaf(leaf):
    if tf.is_tensor(leaf):
        return leaf.dtype, leaf.device
    if isinstance(leaf, np.ndarray):
        return np.ndarray, leaf.dtype
    return type(leaf), str(leaf)


def _parts_of(function):
    """The parts into which TensorFlow has cut a function: devices and types of ops of each."""
    return [
        ({node.device for node in graph.node}, {node.op for node in graph.node})
        for graph in function.partition_graphs
    ]


def _is_on(device_type, parts):
    """Returns whether one part does all work, on a device of this type."""
    working = [devices for devices, ops in parts if not ops <= _HANDING_OVER]
    if len(working) != 1 or len(working[0]) != 1:
        return False
    (device,) = working[0]
    return tf.DeviceSpec.from_string(device).device_type == device_type
