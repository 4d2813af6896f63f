"""Functions whose ops are run by the thread that calls them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import summary_ops_v2

_EXECUTOR = "SINGLE_THREADED_EXECUTOR"
_REFUSAL = "Single-threaded executor does not support"
_DEVICE_TYPE = "GPU"


def ops_in_turn() -> contextlib.AbstractContextManager:
    """In this context one thread runs the ops of a function that is called, one after the other.
    TensorFlow refuses functions of several devices."""
    return context.function_executor_type(_EXECUTOR)


class OnCallingThread:
    """Calls a `tf.function`, whose ops the calling thread runs in turn where they all are on one
    GPU.

    By itself TensorFlow hands ops to threads of a pool. Where ops only launch kernels of a GPU,
    waking these threads takes longer than what they do. Ops of several devices wait for each other,
    which one thread cannot do; and ops of a CPU would run one after the other.

    TensorFlow says where it has put the ops when it prepares a function for a kind of arguments. So
    the first calls of each kind are ordinary ones, until one for which nothing was prepared. It
    refuses functions with branches and loops that are no functions before any of their ops runs:
    they are called in the ordinary way from then on.

    Args:
        function: the `tf.function`.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._devices = {}  # of kinds of arguments whose functions may change: lists of devices
        self._is_on_one_gpu = {}  # of other kinds
        self.is_refused = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the function returns for these arguments, and raises what it raises."""
        if self.is_refused or summary_ops_v2._current_trace_context is not None:
            return self._function(*args, **kwargs)
        kind = _kind_of(args, kwargs)
        is_on_one_gpu = self._is_on_one_gpu.get(kind)
        if is_on_one_gpu is None:
            return self._learn(kind, args, kwargs)
        if is_on_one_gpu:
            try:
                with ops_in_turn():
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
        devices = [_devices_of(function) for function in metadata.function_graphs]
        if devices or kind not in self._devices:
            self._devices[kind] = devices
        else:
            self._is_on_one_gpu[kind] = all(map(_is_one_gpu, self._devices.pop(kind)))
        return outputs


def _kind_of(args, kwargs):
    """What TensorFlow prepares a function for, but for shapes, on which devices do not depend."""
    leaves = tf.nest.flatten((args, kwargs), expand_composites=True)
    return tuple(map(_kind_of_leaf, leaves))


def _kind_of_leaf(leaf):
    if tf.is_tensor(leaf):
        return leaf.dtype, leaf.device
    if isinstance(leaf, np.ndarray):
        return np.ndarray, leaf.dtype
    return type(leaf), str(leaf)


def _devices_of(function):
    """The devices of the parts into which TensorFlow has cut a function."""
    return {node.device for graph in function.partition_graphs for node in graph.node}


def _is_one_gpu(devices):
    parts = [tf.DeviceSpec.from_string(device).device_type for device in devices]
    return parts == [_DEVICE_TYPE]
