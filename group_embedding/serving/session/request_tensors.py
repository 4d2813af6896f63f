"""Inputs of a request as the structs of `libge_serving`, and its response as arrays."""

import ctypes
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from group_embedding.serving.session import native_library
from group_embedding.serving.session.native_library import library


class Prediction(dict):
    """The outputs of a request by name, NumPy arrays, and the version that computed them.

    Attributes:
        version: int, the version of the model: of all tables and dense variables.
    """

    version: int

    def __init__(self, outputs: Mapping[str, Any], version: int) -> None:
        super().__init__(outputs)
        self.version = version


class _Input(NamedTuple):
    array: np.ndarray
    strings: Any  # a ctypes array of native_library.String, or None


def to_tensors(inputs, dtypes):
    """The inputs as C's structs, and what they point to."""
    kept = [_input(name, value, dtypes.get(name)) for name, value in inputs.items()]
    tensors = (native_library.Tensor * len(kept))()
    for tensor, name, given in zip(tensors, inputs, kept):
        array = given.array
        tensor.name = name.encode()
        tensor.dtype = _number(array.dtype)
        tensor.rank = array.ndim
        tensor.dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        if given.strings is None:
            tensor.data, tensor.bytes = array.ctypes.data, array.nbytes
        else:
            tensor.data = ctypes.addressof(given.strings)
            tensor.bytes = ctypes.sizeof(given.strings)
    return tensors, kept


@functools.cache
def _number(dtype):
    """The number of a dtype in TensorFlow's DataType."""
    return tf.as_dtype(dtype).as_datatype_enum


@functools.cache
def _numpy_dtype(number):
    return np.dtype(tf.as_dtype(number).as_numpy_dtype)


def _input(name, value, dtype):
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind not in "USO":
        return _Input(np.ascontiguousarray(value).reshape(value.shape), None)
    if dtype is None or dtype == tf.string:
        array = np.array(value)
        if array.dtype.kind in "USO":
            encoded = [
                item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()
            ]
            if not all(isinstance(item, bytes) for item in encoded):
                raise ValueError(f"input '{name}': expected strings or bytes, got {value!r}")
            strings = (native_library.String * len(encoded))(
                *[native_library.String(item, len(item)) for item in encoded]
            )
            objects = np.empty(len(encoded), object)
            objects[:] = encoded
            return _Input(objects.reshape(array.shape), strings)
        return _Input(array, None)
    return _Input(np.ascontiguousarray(np.array(value, dtype.as_numpy_dtype)), None)


def to_prediction(response):
    outputs = {}
    for i in range(library().ge_serving_num_outputs(response)):
        tensor = library().ge_serving_output(response, i).contents
        outputs[tensor.name.decode()] = _array(tensor)
    return Prediction(outputs, library().ge_serving_response_version(response))


def _array(tensor):
    """A copy of a response's tensor."""
    shape = tuple(tensor.dims[: tensor.rank])
    dtype = _numpy_dtype(tensor.dtype)
    if dtype.kind == "O":  # strings
        count = math.prod(shape)
        strings = ctypes.cast(tensor.data, ctypes.POINTER(native_library.String))
        array = np.empty(count, object)
        for i in range(count):
            # Not strings[i].data, which would end at the first zero.
            pointer = ctypes.cast(ctypes.addressof(strings[i]), ctypes.POINTER(ctypes.c_void_p))
            array[i] = ctypes.string_at(pointer.contents.value or 0, strings[i].size)
        return array.reshape(shape)
    if tensor.bytes == 0:
        return np.empty(shape, dtype)
    content = native_library.view(tensor.data, tensor.bytes)
    return np.frombuffer(content, dtype).reshape(shape).copy()
