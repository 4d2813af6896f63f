"""Tensors of a TensorFlow checkpoint as arrays in files.

TensorFlow's own reader has a whole tensor in memory. The index of a checkpoint says in which file
and at which byte each tensor begins. It is a sorted string table: blocks of keys, each key given by
the number of bytes that it shares with the key before, then a block that lists the blocks
(tensorflow/core/lib/io/table_format.txt), and values that are `BundleEntryProto`.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

from group_embedding.compat.convert.array_files import ArrayFile, size_of

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48


def checkpoint_tensors(prefix: str) -> dict[str, ArrayFile]:
    """All tensors of numbers of one axis or two.

    Args:
        prefix: of a checkpoint, on this machine's file system, or a folder whose newest one is
            meant.

    Returns:
        {name: `ArrayFile`}; tensors of other shapes and of strings are left out.

    Raises:
        ValueError: there is no checkpoint, it is damaged, or a tensor is cut into slices.
    """
    prefix = tf.train.latest_checkpoint(prefix) or prefix
    path = f"{prefix}.index"
    size_of(path)
    with open(path, "rb") as file:
        entries = dict(_entries(path, file.read()))
    header = tensor_bundle_pb2.BundleHeaderProto.FromString(entries.pop(b"", b""))
    if header.endianness != tensor_bundle_pb2.BundleHeaderProto.LITTLE:
        raise ValueError(f"{path}: expected a little-endian checkpoint, got a big-endian one")
    found = {}
    for name, value in entries.items():
        entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
        array = _array(prefix, header.num_shards, name.decode(), entry)
        if array is not None:
            found[name.decode()] = array
    return found


def _array(prefix, num_shards, name, entry):
    dtype = tf.dtypes.as_dtype(entry.dtype)
    shape = [dim.size for dim in entry.shape.dim]
    if len(shape) not in (1, 2) or not (dtype.is_floating or dtype.is_integer):
        return None
    if entry.slices:
        raise ValueError(
            f"{prefix}: tensor '{name}': expected it in one piece, got {len(entry.slices)} slices "
            "of a partitioned variable"
        )
    path = f"{prefix}.data-{entry.shard_id:05d}-of-{num_shards:05d}"
    item = np.dtype(dtype.as_numpy_dtype)
    expected = int(np.prod(shape)) * item.itemsize
    if entry.size != expected or entry.offset + entry.size > size_of(path):
        raise ValueError(
            f"{path}: tensor '{name}': expected {expected:,} bytes at {entry.offset:,}, got "
            f"{entry.size:,} in a file of {size_of(path):,}"
        )
    return ArrayFile(path, item, shape[1] if len(shape) == 2 else 0, shape[0], entry.offset)


def _entries(path, data):
    """All (key, value) of a table."""
    try:
        if int.from_bytes(data[-8:], "little") != _MAGIC:
            raise ValueError("wrong magic number")
        footer = data[-_FOOTER_BYTES:]
        _, at = _number(footer, 0)  # the block of metadata: where it begins, its size
        _, at = _number(footer, at)
        for _, handle in _block(data, *_handle(footer, at)):
            yield from _block(data, *_handle(handle, 0))
    except (IndexError, ValueError) as error:
        raise ValueError(f"{path}: expected the index of a checkpoint: {error}") from None


def _handle(data, at):
    begin, at = _number(data, at)
    return begin, _number(data, at)[0]


def _block(data, begin, size):
    if data[begin + size] != 0:
        raise ValueError("compressed blocks, which TensorFlow does not write")
    block = data[begin : begin + size]
    num_restarts = int.from_bytes(block[-4:], "little")
    end = size - 4 * (num_restarts + 1)
    key, at = b"", 0
    while at < end:
        shared, at = _number(block, at)
        unshared, at = _number(block, at)
        length, at = _number(block, at)
        key = key[:shared] + block[at : at + unshared]
        at += unshared
        yield key, block[at : at + length]
        at += length


def _number(data, at):
    """A varint: (number, where the next byte is)."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
