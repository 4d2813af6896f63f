"""Loads the native op library, once, and explains in one sentence why it cannot be loaded."""

import ctypes
import functools
import json
import sys
import types
from pathlib import Path

from group_embedding.ops._rocksdb import name_rocksdb

PACKAGE = Path(__file__).resolve().parents[1]
STEM = "_group_embedding_ops"
BUILD = (
    "run `make build` in the source tree, or `pip install .` there with the pip of the environment "
    "that has TensorFlow"
)

BUILT_ON_DEMAND = "(2.15 to 2.21), then build group_embedding for it"

# What /proc/cpuinfo must list for the instruction set that the library was compiled for.
CPU_FLAGS = {
    "x86-64-v2": ["popcnt", "sse4_2", "ssse3"],
    "x86-64-v3": ["avx2", "bmi2", "f16c", "fma", "movbe"],
    "x86-64-v4": ["avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "bmi2", "f16c", "fma"],
}


@functools.cache
def library():
    """The functions of the native ops, such as ``library().group_lookup`` of the op
    ``GroupEmbedding>GroupLookup``.

    Raises:
        ImportError: TensorFlow is missing, the library is not built, was built for another
            TensorFlow, or uses instructions that this CPU lacks.
    """
    tf = _tensorflow()
    path = _library_path(tf.__version__)
    record = build_record(tf.__version__)
    _check_cpu(record["march"])
    name_rocksdb()
    try:
        module = tf.load_op_library(str(path))
    except (tf.errors.NotFoundError, OSError) as error:
        raise ImportError(
            f"group_embedding: {path.name}, built for TensorFlow {record['tensorflow']}, does not "
            f"load into TensorFlow {tf.__version__} ({_first_line(error)}): {BUILD}"
        ) from error
    prefix = "group_embedding_"  # of "GroupEmbedding>", as TensorFlow names functions
    functions = {name: f for name, f in vars(module).items() if name.startswith(prefix)}
    return types.SimpleNamespace(**{name[len(prefix) :]: f for name, f in functions.items()})


@functools.cache
def native():
    """The functions of the library that are no ops, through C: see cc/tf/support/host_exchanges.h.

    Raises:
        ImportError: as for `library`.
    """
    library()
    functions = ctypes.CDLL(str(_library_path(_tensorflow().__version__)))
    functions.GroupEmbeddingOpenHostExchange.restype = ctypes.c_int64
    text = [ctypes.c_char_p, ctypes.c_int64]
    number = [ctypes.c_int64]
    of_ranks = ctypes.POINTER(ctypes.c_int32)
    functions.GroupEmbeddingOpenHostExchange.argtypes = [
        ctypes.c_int32,
        ctypes.c_int32,
        of_ranks,
        *text,
    ]
    functions.GroupEmbeddingJoinHostExchange.restype = ctypes.c_bool
    functions.GroupEmbeddingJoinHostExchange.argtypes = [*number, of_ranks, *text]
    functions.GroupEmbeddingMapHostExchange.restype = ctypes.c_bool
    functions.GroupEmbeddingMapHostExchange.argtypes = [
        *number,
        ctypes.c_int32,
        ctypes.c_char_p,
        *text,
    ]
    functions.GroupEmbeddingWaitUntilReceived.restype = None
    functions.GroupEmbeddingWaitUntilReceived.argtypes = [*number, ctypes.c_double]
    functions.GroupEmbeddingEndHostExchange.restype = None
    functions.GroupEmbeddingEndHostExchange.argtypes = [*number, ctypes.c_char_p]
    functions.GroupEmbeddingPendingCalls.restype = None
    functions.GroupEmbeddingPendingCalls.argtypes = [*number, *text]
    functions.GroupEmbeddingHostExchangeUse.restype = None
    functions.GroupEmbeddingHostExchangeUse.argtypes = [
        *number,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.POINTER(ctypes.c_double),
    ]
    functions.GroupEmbeddingNcclSentBytes.restype = None
    functions.GroupEmbeddingNcclSentBytes.argtypes = [*text, ctypes.POINTER(ctypes.c_int64)]
    functions.GroupEmbeddingBeginCall.restype = None
    functions.GroupEmbeddingBeginCall.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    functions.GroupEmbeddingEndCall.restype = None
    functions.GroupEmbeddingEndCall.argtypes = [ctypes.c_char_p]
    functions.GroupEmbeddingCloseHostExchange.restype = None
    functions.GroupEmbeddingCloseHostExchange.argtypes = number
    return functions


def core():
    """The part of the core that Python calls, `group_embedding._native`. It needs no op of
    TensorFlow's.

    Raises:
        ImportError: it is not built. `make train` leaves it out.
    """
    try:
        from group_embedding import _native
    except ImportError as error:
        raise ImportError(
            f"group_embedding: _native for Python {sys.version_info[0]}.{sys.version_info[1]} "
            f"cannot be imported ({_first_line(error)}): {BUILD}"
        ) from error
    return _native


def build_record(tensorflow_version):
    """The build options of the library for this TensorFlow.

    Returns:
        A dict: ``tensorflow`` (its version), ``cxx11_abi``, ``march``, ``cuda`` (the toolkit's
        version, or None where the library has no CUDA) and ``cuda_archs``.
    """
    path = _library_path(tensorflow_version).with_suffix(".json")
    return json.loads(path.read_text())


def _tensorflow():
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            f"group_embedding: TensorFlow cannot be imported ({_first_line(error)}): install "
            f"tensorflow or tensorflow-cpu {_named(_built_minors(), 'or') or BUILT_ON_DEMAND}"
        ) from error
    return tf


def _built_minors():
    """The minor versions of TensorFlow that the package has a library for, as ["2.15", "2.21"]."""
    found = [path.stem.partition(".tf")[2] for path in PACKAGE.glob(f"{STEM}.tf*.so")]
    return sorted(found, key=lambda minor: [int(number) for number in minor.split(".")])


def _named(minors, last_word="and"):
    """In words: "2.15, 2.16 and 2.17"."""
    if len(minors) < 2:
        return "".join(minors)
    return f"{', '.join(minors[:-1])} {last_word} {minors[-1]}"


def _library_path(tensorflow_version):
    minor = _minor(tensorflow_version)
    path = PACKAGE / f"{STEM}.tf{minor}.so"
    if path.exists():
        return path
    built = _built_minors()
    if built:
        these = "one of these" if len(built) > 1 else "that"
        raise ImportError(
            f"group_embedding: built for TensorFlow {_named(built)}, but TensorFlow "
            f"{tensorflow_version} is installed: install {these}, or {BUILD}"
        )
    raise ImportError(f"group_embedding: the native library is not built: {BUILD}")


def _check_cpu(march):
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        return
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "").split()
    missing = [flag for flag in CPU_FLAGS.get(march, []) if flag not in flags]
    if flags and missing:
        raise ImportError(
            f"group_embedding: the native library was built for {march} CPUs, and this one lacks "
            f"{', '.join(missing)}: build it with GROUP_EMBEDDING_MARCH=x86-64"
        )


def _minor(version):
    return ".".join(version.split(".")[:2])


def _first_line(error):
    return str(error).partition("\n")[0]
