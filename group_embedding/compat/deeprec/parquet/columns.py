"""The columns of a Parquet file: their types in TensorFlow's words, and their values as arrays."""

import numpy as np
import tensorflow as tf

from group_embedding.compat.deeprec.parquet.dataframe import DataFrame

_DTYPES = {
    "bool": tf.bool,
    "int8": tf.int8,
    "int16": tf.int16,
    "int32": tf.int32,
    "int64": tf.int64,
    "uint8": tf.uint8,
    "uint16": tf.uint16,
    "uint32": tf.uint32,
    "uint64": tf.uint64,
    "halffloat": tf.float16,
    "float": tf.float32,
    "double": tf.float64,
    "string": tf.string,
    "large_string": tf.string,
    "binary": tf.string,
    "large_binary": tf.string,
}


def pyarrow():
    """The packages pyarrow and pyarrow.parquet."""
    try:
        import pyarrow as package
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError(
            "ParquetDataset needs pyarrow: pip install group_embedding[parquet]"
        ) from error
    return package, parquet


def read_fields(filename, fields=None, lower=False):
    """The fields of a file: all, or those that are asked for, with what the file says of them.

    Raises:
        ValueError: the file lacks a field, or has another type of it, or one that TensorFlow lacks.
    """
    package, parquet = pyarrow()
    filename = filename.decode() if isinstance(filename, bytes) else filename
    schema = parquet.read_schema(filename)
    if fields is None:
        fields = schema.names
    return tuple(_complete(package, filename, schema, field, lower) for field in fields)


def _complete(package, filename, schema, field, lower):
    field = DataFrame.Field(field) if isinstance(field, str) else field
    if not isinstance(field, DataFrame.Field):
        raise ValueError(f"fields: expected names or DataFrame.Field, got {field!r}")
    name = field.name
    if lower and name not in schema.names:
        name = name.lower()
    if name not in schema.names:
        raise ValueError(
            f"{filename}: expected a field '{name}', got {', '.join(schema.names) or 'none'}"
        )
    dtype, ragged_rank = _type_of(package, schema.field(name).type)
    if dtype is None:
        raise ValueError(
            f"{filename}: field '{name}' is of {schema.field(name).type}: expected numbers, "
            "bools, strings, or lists of those; name other fields, or convert it"
        )
    for what, asked, actual in (
        ("dtype", field.dtype, dtype),
        ("ragged_rank", field.ragged_rank, ragged_rank),
    ):
        if asked is not None and asked != actual:
            raise ValueError(
                f"{filename}: field '{name}': expected {what} {asked}, as asked for, the file has "
                f"{actual}"
            )
    return DataFrame.Field(name, dtype, ragged_rank, field.shape)


def _type_of(package, arrow_type):
    """(dtype or None, ragged_rank)"""
    types, ragged_rank = package.types, 0
    while (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    ):
        arrow_type, ragged_rank = arrow_type.value_type, ragged_rank + 1
    if types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    return _DTYPES.get(str(arrow_type)), ragged_rank


def arrays_of(filename, batch, field):
    """Reads one column of a batch, a pyarrow.Table.

    Returns:
        The values, then the row splits of each level, those of the innermost lists last.
    """
    column = batch.column(field.name).unify_dictionaries().combine_chunks()
    splits = []
    for _ in range(field.ragged_rank):
        _check_no_null(filename, field, column)
        if hasattr(column, "offsets"):
            offsets = column.offsets.to_numpy(zero_copy_only=False)
        else:  # lists of a fixed size
            offsets = np.arange(len(column) + 1) * column.type.list_size
        splits.append((offsets - offsets[0]).astype(np.int32))
        column = column.flatten()
    _check_no_null(filename, field, column)
    values = _values_of(column, field.dtype)
    if field.shape is None:
        return [values, *splits]
    return [_of_fixed_shape(filename, field, values, splits[0])]


def _check_no_null(filename, field, column):
    if column.null_count:
        raise ValueError(
            f"{filename}: field '{field.name}': expected a value in every row, got "
            f"{column.null_count} nulls in a batch; fill or drop them before"
        )


def _values_of(column, dtype):
    package, _ = pyarrow()
    if package.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if dtype == tf.string:
        column = column.cast(package.large_binary())
    return column.to_numpy(zero_copy_only=False).astype(dtype.as_numpy_dtype, copy=False)


def _of_fixed_shape(filename, field, values, splits):
    size = field.shape.num_elements()
    lengths = np.diff(splits)
    if not np.all(lengths == size):
        other = lengths[lengths != size][0]
        raise ValueError(
            f"{filename}: field '{field.name}': expected lists of {size}, for shape "
            f"{field.shape}, got one of {other}"
        )
    return values.reshape([-1, *field.shape.as_list()])
