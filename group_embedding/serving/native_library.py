"""libge_serving through ctypes: the structs and functions of cc/serving/ge_serving.h."""

import ctypes
import functools
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[1] / "libge_serving.so"


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
            + [error, error],
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


def take_text(pointer):
    """The text at a pointer that the library allocated, which is freed.

    Args:
        pointer: ctypes.c_void_p.
    """
    text = ctypes.string_at(pointer).decode(errors="replace") if pointer else ""
    library().ge_serving_free(pointer)
    return text
