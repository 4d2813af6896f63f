"""SOK version 1's `Saver`."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from group_embedding.compat.sok import dump_files as files
from group_embedding.compat.sok.sok_tables import name_of
from group_embedding.lookups import tf_variable
from group_embedding.ranks.sharding import assign_rows, table_shape
from group_embedding.variables import EmbeddingVariable, KeyedReplicas

_ENTRY = "embedding_variable"


class Saver:
    """Saves the embedding variable of one layer at a time, in eager code.

    Every rank must call each method. In graphs of TensorFlow 1, `ge.Saver` saves embedding
    variables with all others.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> layer = ge.sok.All2AllDenseEmbedding(100, 2, slot_num=1, nnz_per_slot=1)
    >>> saver = ge.sok.Saver()
    >>> saver.load_embedding_values(layer.embedding_variable, tf.constant([[1., 2.], [3., 4.]]))
    >>> saver.dump_to_file(layer.embedding_variable, folder)
    >>> other = ge.sok.All2AllDenseEmbedding(100, 2, slot_num=1, nnz_per_slot=1)
    >>> saver.restore_from_file(other.embedding_variable, folder)
    >>> other(tf.constant([[[1]]], tf.int64)).numpy().tolist()
    [[[[3.0, 4.0]]]]
    """

    def dump_to_file(self, embedding_variable: Any, filepath: str | os.PathLike[str]) -> Any:
        """Writes the variable to the folder `filepath`, which holds one: see `sok.dump`."""
        files.write(filepath, {_ENTRY: embedding_variable})

    def restore_from_file(self, embedding_variable: Any, filepath: str | os.PathLike[str]) -> Any:
        """Reads what `dump_to_file` wrote, also of a variable of another name, on however many
        ranks; raises what `sok.load` does."""
        files.read(filepath, {_ENTRY: embedding_variable})

    def load_embedding_values(self, embedding_variable: Any, tensors: Any) -> Any:
        """Sets rows to those of a matrix, the same on all ranks.

        Args:
            embedding_variable: of a layer. With a hash table, row k becomes that of key k, and
                other keys keep theirs; without, `tensors` have all rows.
            tensors: a matrix [rows, dim], or a list of its parts, the first rows first.

        Raises:
            ValueError: a matrix of another shape.
        """
        parts = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        values = tf.concat([tf.convert_to_tensor(part) for part in parts], axis=0)
        variable = tf_variable(embedding_variable)
        is_keyed = isinstance(variable, (EmbeddingVariable, KeyedReplicas))
        expected = table_shape(embedding_variable)
        expected = [None, expected[1]] if is_keyed else expected
        if not values.shape.is_compatible_with(expected):
            raise ValueError(
                f"table '{name_of(variable)}': expected values of shape {tuple(expected)}, got "
                f"{tuple(values.shape)}"
            )
        values = tf.cast(values, variable.dtype)
        if is_keyed:
            keys = tf.range(tf.shape(values, out_type=tf.int64)[0])
            variable.insert(tf.cast(keys, variable.key_dtype), values)
        else:
            assign_rows(embedding_variable, values)
