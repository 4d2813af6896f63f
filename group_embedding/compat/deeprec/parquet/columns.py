"""The columns of a Parquet file: their types in TensorFlow's words, and their values as arrays."""

import functools

import numpy as np
import tensorflow as tf

from group_embedding.compat.deeprec.parquet.dataframe import DataFrame
from group_embedding.recommender.data import Column, arrow, to_array, type_of


def read_fields(filename, fields=None, lower=False):
    """The fields of a file: all, or those that are asked for, with what the file says of them.

    Raises:
        ValueError: the file lacks a field, or has another type of it, or one that TensorFlow lacks.
    """
    filename = filename.decode() if isinstance(filename, bytes) else filename
    schema = arrow().parquet.read_schema(filename)
    if fields is None:
        fields = schema.names
    return tuple(_complete(filename, schema, field, lower) for field in fields)


def _complete(filename, schema, field, lower):
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
    dtype, ragged_rank = type_of(schema.field(name).type)
    if dtype is None:
        raise ValueError(
            f"{filename}: field '{name}' is of {schema.field(name).type}: expected numbers, "
            "bools, strings, or lists of those; name other fields, or convert it"
        )
    for what, asked, actual in (
        ("dtype", field.dtype, tf.as_dtype(dtype)),
        ("ragged_rank", field.ragged_rank, ragged_rank),
    ):
        if asked is not None and asked != actual:
            raise ValueError(
                f"{filename}: field '{name}': expected {what} {asked}, as asked for, the file has "
                f"{actual}"
            )
    return DataFrame.Field(name, dtype, ragged_rank, field.shape)


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
    values, *_ = to_array(column, _column_of(field.name, field.dtype))
    if field.shape is None:
        return [values, *splits]
    return [_of_fixed_shape(filename, field, values, splits[0])]


_column_of = functools.lru_cache(maxsize=1024)(Column)


def _check_no_null(filename, field, column):
    if column.null_count:
        raise ValueError(
            f"{filename}: field '{field.name}': expected a value in every row, got "
            f"{column.null_count} nulls in a batch; fill or drop them before"
        )


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
