"""Tensors in files of `torch.save`, read without torch.

Such a file is a zip archive: `data.pkl` is the pickle of the object, in which each tensor names
its storage; `data/0`, `data/1` and so on are the storages, plain arrays. The pickle is read with
the few names that a state dict needs; any other, and so any code, is refused.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import pickle
import zipfile

import numpy as np
import tensorflow as tf

from group_embedding.compat.convert.array_files import ArrayFile, size_of

_BFLOAT16 = np.dtype(tf.bfloat16.as_numpy_dtype)
_STORAGES = {
    "FloatStorage": np.dtype("float32"),
    "DoubleStorage": np.dtype("float64"),
    "HalfStorage": np.dtype("float16"),
    "BFloat16Storage": _BFLOAT16,
    "LongStorage": np.dtype("int64"),
    "IntStorage": np.dtype("int32"),
    "ShortStorage": np.dtype("int16"),
    "CharStorage": np.dtype("int8"),
    "ByteStorage": np.dtype("uint8"),
    "BoolStorage": np.dtype("bool"),
}
_LOCAL_HEADER_BYTES = 30


def torch_tensors(path: str) -> dict[str, ArrayFile]:
    """The tensors of one or two axes in the dicts of a file.

    Names of nested dicts are joined by dots.

    Args:
        path: of a file that `torch.save` wrote, in its format since torch 1.6.

    Returns:
        {name: `ArrayFile`}.

    Raises:
        ValueError: it is no such file, or has objects other than dicts, lists, numbers and tensors.
    """
    size_of(path)
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path}: expected a zip archive as torch.save writes it since torch 1.6, got another "
            "file; load and save it with a newer torch"
        )
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in members if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"{path}: expected one data.pkl in the archive, got {len(pickles)}")
        with archive.open(pickles[0]) as file:
            root = _Reader(path, file).load()
    folder = pickles[0].removesuffix("data.pkl")
    tensors = {}
    _collect(root, "", tensors)
    found = {
        name: _array(path, members.get(f"{folder}data/{tensor.storage.key}"), name, tensor)
        for name, tensor in tensors.items()
    }
    return {name: array for name, array in found.items() if array is not None}


@dataclasses.dataclass(frozen=True)
class _Storage:
    dtype: np.dtype
    key: str


@dataclasses.dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple
    strides: tuple


def _rebuild_tensor(storage, offset, shape, strides, *_):
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor, *_):
    return tensor


class _Dict(collections.OrderedDict):
    """An OrderedDict that takes attributes, as a state dict has `_metadata`."""


_NAMES = {
    ("collections", "OrderedDict"): _Dict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    **{("torch", name): dtype for name, dtype in _STORAGES.items()},
}


class _Reader(pickle.Unpickler):
    def __init__(self, path, file):
        super().__init__(file)
        self._path = path

    def find_class(self, module, name):
        if (module, name) not in _NAMES:
            raise ValueError(
                f"{self._path}: expected dicts of whole tensors, got an object of {module}.{name}; "
                "save a state dict whose tensors are gathered, as by "
                "torch.distributed.checkpoint.state_dict.get_model_state_dict with full_state_dict"
            )
        return _NAMES[module, name]

    def persistent_load(self, saved):
        _, dtype, key, *_ = saved
        return _Storage(dtype, key)

    def load(self):
        try:
            return super().load()
        except (pickle.UnpicklingError, EOFError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{self._path}: expected a pickle of tensors: {error}") from None


def _collect(value, name, found):
    """Adds the tensors in nested dicts and lists to `found`."""
    if isinstance(value, _Tensor):
        found[name] = value
    elif isinstance(value, dict):
        for key, inner in value.items():
            _collect(inner, f"{name}.{key}" if name else str(key), found)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            _collect(inner, f"{name}.{i}" if name else str(i), found)


def _array(path, member, name, tensor):
    if len(tensor.shape) not in (1, 2):
        return None
    width = tensor.shape[1] if len(tensor.shape) == 2 else 0
    if tensor.strides != ((width, 1) if width else (1,)):
        raise ValueError(
            f"{path}: tensor '{name}': expected rows one after the other, got strides "
            f"{tensor.strides}; save a contiguous tensor"
        )
    item = tensor.storage.dtype.itemsize
    end = (tensor.offset + int(np.prod(tensor.shape))) * item
    if member is None or member.compress_type != zipfile.ZIP_STORED or member.file_size < end:
        raise ValueError(f"{path}: tensor '{name}': expected a storage of {end:,} bytes")
    begin = _data_begin(path, member) + tensor.offset * item
    return ArrayFile(os.fspath(path), tensor.storage.dtype, width, tensor.shape[0], begin)


def _data_begin(path, member):
    """Returns the offset of the first byte of a member of the archive."""
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER_BYTES)
    name, extra = (int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
    return member.header_offset + _LOCAL_HEADER_BYTES + name + extra
