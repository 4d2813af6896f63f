"""Columns of Arrow as arrays of NumPy: types, missing values, and values that do not fit."""

from __future__ import annotations

import numpy as np

from group_embedding.recommender.data.columns import Ragged
from group_embedding.recommender.data.files import arrow

_DTYPES = {
    **{name: name for name in ("bool", "int8", "int16", "int32", "int64")},
    **{name: name for name in ("uint8", "uint16", "uint32", "uint64")},
    **{"halffloat": "float16", "float": "float32", "double": "float64"},
    **dict.fromkeys(("string", "large_string", "binary", "large_binary"), "string"),
}
_DIGITS = np.full(256, 255, np.uint8)
for _base, _digits in ((0, b"0123456789"), (10, b"abcdef"), (10, b"ABCDEF")):
    _DIGITS[list(_digits)] = _base + np.arange(len(_digits))


def type_of(arrow_type):
    """(dtype, depth) of a type of Arrow: the dtype of values, None where tensors have no such type,
    and how many lists a value is in."""
    types, depth = arrow().types, 0
    while _is_list(arrow_type):
        arrow_type, depth = arrow_type.value_type, depth + 1
    if types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if types.is_decimal(arrow_type):
        return "float64", depth
    if types.is_null(arrow_type):
        return "string", depth
    return _DTYPES.get(str(arrow_type)), depth


def _is_list(arrow_type):
    types = arrow().types
    return (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    )


class Unfit(ValueError):
    """Values of a column that it cannot have.

    Attributes:
      bad: bool [rows], True for rows with such a value.
      got: the first of the values.
    """

    def __init__(self, bad, got):
        super().__init__(got)
        self.bad, self.got = bad, got


def to_array(values, column):
    """An array, or a Ragged, of a column of Arrow.

    Args:
        values: a pyarrow.Array.
        column: a complete `Column`.

    Returns:
        (the array; bool [rows] that marks bad rows, or None; the first bad value, or None). Bad
        rows have any value.
    """
    if arrow().types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if column.is_list:
        return _to_ragged(values, column)
    return _to_flat(values, column)


def _to_ragged(values, column):
    if not _is_list(values.type):
        values = _split(values, column.separator)
    num_rows = len(values)
    lengths = arrow().compute.list_value_length(values)
    lengths = lengths.fill_null(0).to_numpy(zero_copy_only=False)
    splits = np.zeros(num_rows + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    flat, bad, got = _to_flat(values.flatten(), column)
    if bad is not None:
        bad = np.bincount(np.searchsorted(splits, np.flatnonzero(bad), "right") - 1, None, num_rows)
        bad = bad > 0
    return Ragged(flat, splits), bad, got


def _split(texts, separator):
    """Lists of the texts between separators; an empty text is an empty list."""
    pa = arrow()
    lists = pa.compute.split_pattern(texts, separator)
    empty = pa.compute.equal(texts, pa.scalar("", texts.type))
    return pa.compute.if_else(empty, pa.scalar(None, lists.type), lists)


def _to_flat(values, column):
    bad, got, null = None, None, None
    if arrow().types.is_decimal(values.type):
        values = values.cast(arrow().float64())
    if values.null_count:
        null = values.is_null().to_numpy(zero_copy_only=False)
        # For base 16 of eight digits, which most numbers of such columns have.
        values = values.fill_null(_zero_of(values.type, "0" * (8 if column.base == 16 else 1)))
        if column.missing is None:
            bad, got = null, "a missing value"
    try:
        array = _convert(values, column)
    except Unfit as unfit:
        good = ~unfit.bad
        array = np.zeros(len(values), column.numpy_dtype)
        array[good] = _convert(values.filter(arrow().array(good)), column)
        bad, got = unfit.bad if bad is None else bad | unfit.bad, got or unfit.got
    if null is not None and column.missing is not None:
        array = array if array.flags.writeable else array.copy()
        missing = column.missing
        array[null] = missing.encode() if isinstance(missing, str) else missing
    return array, bad, got


def _zero_of(arrow_type, text):
    """A value that every column can have, to be replaced by that for missing ones."""
    pa = arrow()
    if pa.types.is_null(arrow_type):
        return pa.scalar(text, pa.string())
    if _is_text(arrow_type):
        return pa.scalar(text, pa.string()).cast(arrow_type)
    return pa.scalar(0, pa.int8()).cast(arrow_type)


def _is_text(arrow_type):
    return _DTYPES.get(str(arrow_type)) == "string"


def _convert(values, column):
    """An array of the column's dtype of values. Raises Unfit where some do not fit."""
    pa = arrow()
    if column.dtype == "string":
        text = values if _is_text(values.type) else values.cast(pa.large_string())
        return text.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    if column.base == 16:
        return _from_hexadecimal(values, column)
    return _cast(values, column)


def _cast(values, column):
    pa = arrow()
    wanted = pa.from_numpy_dtype(column.numpy_dtype)
    try:
        cast = values if values.type == wanted else _cast_values(values, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if isinstance(error, pa.ArrowNotImplementedError):
            raise ValueError(
                f"column '{column.name}': expected {column.dtype}, the file has {values.type}"
            ) from None
        bad = np.zeros(len(values), bool)
        bad[_find_unfit(values, wanted, 0)] = True
        raise Unfit(bad, _first_of(values, bad)) from None
    return cast.to_numpy(zero_copy_only=False)


def _first_of(values, bad):
    """The first bad value, as errors show it."""
    value = values[int(np.argmax(bad))].as_py()
    return repr(value.decode(errors="replace") if isinstance(value, bytes) else value)[:200]


def _cast_values(values, wanted):
    """Numbers are rounded to a narrower float; an integer that does not fit raises."""
    pa = arrow()
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        values = values.cast(pa.large_string())
    if pa.types.is_floating(wanted) and not _is_text(values.type):
        return values.cast(wanted, safe=False)
    if pa.types.is_integer(wanted) and pa.types.is_boolean(values.type):
        return values.cast(pa.int8()).cast(wanted)
    if pa.types.is_float16(wanted):
        return values.cast(pa.float32()).cast(wanted, safe=False)
    return values.cast(wanted)


def _find_unfit(values, wanted, begin):
    """The numbers of the values that cannot be cast, by halves: few are expected."""
    try:
        _cast_values(values, wanted)
        return []
    except arrow().ArrowInvalid:
        if len(values) == 1:
            return [begin]
    half = len(values) // 2
    return [
        *_find_unfit(values[:half], wanted, begin),
        *_find_unfit(values[half:], wanted, begin + half),
    ]


def _from_hexadecimal(values, column):
    pa = arrow()
    if not _is_text(values.type):
        raise ValueError(
            f"column '{column.name}': expected text, for base 16, the file has {values.type}"
        )
    values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    offsets = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    lengths = np.diff(offsets)
    numbers, bad = np.zeros(len(values), np.uint64), np.zeros(len(values), bool)
    widths = np.unique(lengths)
    for width in widths:
        rows = slice(None) if len(widths) == 1 else np.flatnonzero(lengths == width)
        if not 0 < width <= 16:
            bad[rows] = True
        elif len(widths) == 1:
            text = data[offsets[0] : offsets[-1]].reshape(-1, width)
            numbers[rows], bad[rows] = _parse_digits(_DIGITS[text])
        else:
            text = data[offsets[:-1][rows, None] + np.arange(width)]
            numbers[rows], bad[rows] = _parse_digits(_DIGITS[text])
    bad |= numbers > np.iinfo(column.dtype).max
    if bad.any():
        raise Unfit(bad, _first_of(values, bad))
    return numbers.astype(column.numpy_dtype)


def _parse_digits(digits):
    """(uint64 of rows of hexadecimal digits, bool of rows with another character)"""
    num_rows, width = digits.shape
    bad = (digits > 15).any(axis=1) if digits.max(initial=0) > 15 else np.zeros(num_rows, bool)
    padded = digits
    if width % 2:
        padded = np.zeros((num_rows, width + 1), np.uint8)
        padded[:, 1:] = digits
    pairs = padded[:, ::2] << 4 | (padded[:, 1::2] & 15)
    as_bytes = np.zeros((num_rows, 8), np.uint8)
    as_bytes[:, 8 - pairs.shape[1] :] = pairs
    return as_bytes.view(">u8")[:, 0], bad
