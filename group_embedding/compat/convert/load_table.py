"""Rows of other libraries into a table of this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.compat.convert.rows import SavedTable
from group_embedding.variables import EmbeddingVariable


def load_table(variable: Any, table: SavedTable) -> int:
    """Gives a table the rows of another library's, block by block.

    Args:
        variable: an `EmbeddingVariable`, or a variable of shape [rows, dim], whose row numbers are
            the keys: a `tf.Variable`, or a weight of a Keras layer, as in `layer.tables`. Rows
            without a saved key keep their values. Over ranks every rank calls it with its
            EmbeddingVariable, and keeps its keys.
        table: of `open_tables`.

    Returns:
        How many rows were read.

    Raises:
        ValueError: the dims differ, or a key is no row number of the variable.

    Example:

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/items.txt"
    >>> with open(path, "w") as file:
    ...     _ = file.write("2 0.5 1.5\\n0 2.5 3.5\\n")
    >>> items = tf.Variable(tf.zeros([3, 2]))
    >>> ge.convert.load_table(items, *ge.convert.open_tables("text", path))
    2
    >>> items.numpy().tolist()
    [[2.5, 3.5], [0.0, 0.0], [0.5, 1.5]]
    """
    # Below a weight of Keras 3 is a variable of TensorFlow.
    is_ours = isinstance(variable, (tf.Variable, EmbeddingVariable))
    target = variable if is_ours else variable.value
    if not isinstance(target, (tf.Variable, EmbeddingVariable)):
        raise TypeError(
            f"table '{table.name}': expected a variable of shape [rows, dim] to load it into, got "
            f"{variable!r}"
        )
    if target.shape.rank != 2 or target.shape[1] != table.dim:
        raise ValueError(
            f"table '{table.name}': expected a variable of shape [rows, {table.dim}], got "
            f"'{target.name}' of shape {tuple(target.shape)}"
        )
    num_rows = 0
    for rows in table.blocks():
        if isinstance(target, EmbeddingVariable):
            target.insert(rows.keys, rows.values, rows.versions, rows.counts)
        else:
            _scatter(target, table.name, rows)
        num_rows += len(rows.keys)
    return num_rows


def _scatter(variable, name, rows):
    is_out = (rows.keys < 0) | (rows.keys >= variable.shape[0])
    if is_out.any():
        raise ValueError(
            f"table '{name}': expected keys from 0 to {variable.shape[0] - 1}, the row numbers of "
            f"'{variable.name}', got {rows.keys[np.argmax(is_out)]}; a table found by key "
            "(num_rows=None) takes any"
        )
    values = tf.cast(rows.values, variable.dtype)
    variable.scatter_update(tf.IndexedSlices(values, tf.constant(rows.keys)))
