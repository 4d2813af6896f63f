"""The file of a version's dense variables, and of changed rows of tables by row number.

docs/reference/deltas.md has the format byte by byte.
"""

import io
import struct
from collections.abc import Callable
from typing import BinaryIO, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from group_embedding.ops import core
from group_embedding.serving.stores.records import DamagedVersion, FileEntry

_VARIABLE, _ROW_NUMBERS, _VALUES, _TOTALS = 20, 21, 22, 23  # kinds of sections
_BLOCK_BYTES = 1 << 20
_MAX_RANK = 254


class VariableChange(NamedTuple):
    """A variable, or some of its rows.

    Attributes:
        key: Its name in the base's checkpoint.
        shape: The shape of the whole variable.
        rows: None: `values` are the whole variable; else int64 [n], rising: they are these rows.
        values: [*shape], or [n, *shape[1:]].
    """

    key: str
    shape: tuple[int, ...]
    rows: Optional[np.ndarray]
    values: np.ndarray


def encode(changes: list[VariableChange]) -> tuple[bytes, dict[str, int]]:
    """The file's content, and its size and checksum, {bytes, crc}."""
    sections = []
    for change in changes:
        sections.append((_VARIABLE, _head(change)))
        if change.rows is not None:
            sections += _blocks(_ROW_NUMBERS, np.asarray(change.rows, "<i8"))
        sections += _blocks(_VALUES, change.values)
    sections.append((_TOTALS, struct.pack("<q", len(changes))))
    return core().encode_sections(sections)


def decode(
    path: str, entry: FileEntry, opened: Callable[[], BinaryIO]
) -> dict[str, VariableChange]:
    """{key: its change} of the file at `path`.

    Args:
        path: The path of the file, for messages.
        entry: What the version's record says of the file.
        opened: Opens the file.

    Raises:
        DamagedVersion: The file is damaged, or not the one that the record names.
    """
    try:
        file = core().SectionFile(path, _BLOCK_BYTES, open=lambda _: opened())
        changes, num_stated = _changes_of(file)
        if num_stated != len(changes):
            raise ValueError(f"expected {num_stated} variables, got {len(changes)}")
        if (file.sum["bytes"], file.sum["crc"]) != (entry.bytes, entry.crc):
            raise ValueError("it is a file of another version")
    except (OSError, RuntimeError, ValueError, struct.error) as error:
        raise DamagedVersion(f"'{path}' is damaged: {error}") from None
    return changes


def _head(change):
    key = change.key.encode()
    whole = change.rows is None
    return (
        struct.pack("<I", len(key))
        + key
        + struct.pack("<iI", tf.as_dtype(change.values.dtype).as_datatype_enum, len(change.shape))
        + np.asarray(change.shape, "<i8").tobytes()
        + struct.pack("<Iq", 0 if whole else 1, 0 if whole else len(change.rows))
    )


def _blocks(kind, array):
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [(kind, data[at : at + _BLOCK_BYTES]) for at in range(0, data.size, _BLOCK_BYTES)]


def _changes_of(file):
    """The changes in the file's sections, and their number as the file states it."""
    found, pending, num_stated = {}, None, None
    for kind, payload in file:
        if num_stated is not None:
            raise ValueError("there are sections behind the last one")
        if kind in (_VARIABLE, _TOTALS) and pending is not None:
            pending.add_to(found)
        if kind == _VARIABLE:
            pending = _Pending(payload)
        elif kind == _TOTALS:
            (num_stated,) = struct.unpack("<q", payload)
        elif kind in (_ROW_NUMBERS, _VALUES) and pending is not None:
            pending.take(kind, payload)
        else:
            raise ValueError(f"a section of kind {kind} stands where there can be none")
    if num_stated is None:
        raise ValueError("its end is missing")
    return found, num_stated


class _Pending:
    """A variable whose data is being read. No memory is taken before its data is there."""

    def __init__(self, payload):
        fields = io.BytesIO(payload)
        (size,) = struct.unpack("<I", fields.read(4))
        self._key = fields.read(size).decode()
        dtype, rank = struct.unpack("<iI", fields.read(8))
        if rank > _MAX_RANK:
            raise ValueError(f"variable '{self._key}' has {rank} dims")
        self._shape = struct.unpack(f"<{rank}q", fields.read(8 * rank))
        self._has_rows, self._num_rows = struct.unpack("<Iq", fields.read(12))
        self._dtype = _numpy_type(dtype, self._key)
        if fields.read(1) or min((0, *self._shape)) < 0 or self._num_rows < 0:
            raise ValueError(f"variable '{self._key}' has sizes that there cannot be")
        self._row_numbers, self._values = bytearray(), bytearray()

    def take(self, kind, payload):
        if kind == _ROW_NUMBERS and self._values:
            raise ValueError(f"variable '{self._key}' has row numbers behind its values")
        (self._row_numbers if kind == _ROW_NUMBERS else self._values).extend(payload)

    def add_to(self, found):
        if self._key in found:
            raise ValueError(f"variable '{self._key}' is there twice")
        rows, shape = None, self._shape
        if self._has_rows:
            rows = self._rows()
            shape = (self._num_rows, *self._shape[1:])
        size = 1
        for dim in shape:
            size *= dim
        if size * self._dtype.itemsize != len(self._values):
            raise ValueError(
                f"variable '{self._key}': expected {size * self._dtype.itemsize} bytes of values, "
                f"got {len(self._values)}"
            )
        values = np.frombuffer(bytes(self._values), self._dtype).reshape(shape)
        found[self._key] = VariableChange(self._key, self._shape, rows, values)

    def _rows(self):
        rows = np.frombuffer(bytes(self._row_numbers), "<i8")
        limit = self._shape[0] if self._shape else 0
        is_good = len(rows) == self._num_rows and np.all(np.diff(rows) > 0)
        if not is_good or (len(rows) and not 0 <= rows[0] <= rows[-1] < limit):
            raise ValueError(f"variable '{self._key}' has row numbers that there cannot be")
        return rows


def _numpy_type(number, key):
    try:
        dtype = tf.as_dtype(number)
    except TypeError:
        dtype = tf.string
    if dtype in (tf.string, tf.resource, tf.variant):
        raise ValueError(f"variable '{key}' has a type without a size, number {number}")
    return np.dtype(dtype.as_numpy_dtype)
