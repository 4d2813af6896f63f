"""libge_serving through ctypes: what cc/serving/c_api/ge_serving.h has, and its errors."""

import ctypes
import functools
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework import errors_impl

LIBRARY = Path(__file__).resolve().parents[2] / "libge_serving.so"


_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]


class String(ctypes.Structure):
    """An element of a tensor of strings."""

    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class Tensor(ctypes.Structure):
    """A tensor in C's memory."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    ]


@functools.cache
def library():
    """The functions of libge_serving, with their types.

    Raises:
        ImportError: the library is not built.
    """
    if not LIBRARY.exists():
        raise ImportError(f"group_embedding: {LIBRARY.name} is not built: run `make build`")
    functions = ctypes.CDLL(str(LIBRARY))
    model, text = ctypes.c_void_p, ctypes.c_char_p
    error = ctypes.POINTER(ctypes.c_void_p)
    count, strings = ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p)
    types = {
        "open": (ctypes.c_int, [text, text, ctypes.POINTER(model), error]),
        "close": (None, [model]),
        "predict_within": (
            ctypes.c_int,
            [model, text, ctypes.POINTER(Tensor), count, strings, count, ctypes.c_int64]
            + [ctypes.c_void_p, ctypes.c_void_p, error, error],
        ),
        "response_version": (ctypes.c_int64, [ctypes.c_void_p]),
        "num_outputs": (count, [ctypes.c_void_p]),
        "output": (ctypes.POINTER(Tensor), [ctypes.c_void_p, count]),
        "free_response": (None, [ctypes.c_void_p]),
        "signatures": (ctypes.c_int, [model, error, error]),
        "version": (ctypes.c_int64, [model]),
        "info": (ctypes.c_int, [model, error, error]),
        "apply": (ctypes.c_int, [model, text, error]),
        "rollback": (ctypes.c_int, [model, error]),
        "free": (None, [ctypes.c_void_p]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(functions, f"ge_serving_{name}")
        function.restype, function.argtypes = result, arguments
    return functions


def view(address, size):
    """C's memory as a memoryview, to be read while it is there.

    Args:
        address: int.
        size: int, bytes.
    """
    return _view(address, size, 0x100)  # PyBUF_READ


def take_text(pointer):
    """The text at a pointer that the library allocated, which is freed.

    Args:
        pointer: ctypes.c_void_p.
    """
    text = ctypes.string_at(pointer).decode(errors="replace") if pointer else ""
    library().ge_serving_free(pointer)
    return text


def check(function, *arguments):
    """Calls a function of libge_serving, and raises its error.

    Args:
        function: of `library()`, which returns a code and writes a sentence.
        *arguments: all of its arguments but the last, the sentence.

    Raises:
        ValueError: a wrong argument.
        FileNotFoundError: a model that is opened does not exist.
        KeyError: the model has nothing of a name.
        tf.errors.OpError: of the code, otherwise.
    """
    error = ctypes.c_void_p()
    code = function(*arguments, ctypes.byref(error))
    if code == 0:
        return
    sentence = take_text(error)
    if code == tf.errors.INVALID_ARGUMENT:
        raise ValueError(sentence)
    if code == tf.errors.NOT_FOUND and function is library().ge_serving_open:
        raise FileNotFoundError(sentence)
    if code == tf.errors.NOT_FOUND:
        raise KeyError(sentence)
    raise errors_impl.exception_type_from_error_code(code)(None, None, sentence)
