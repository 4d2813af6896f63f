"""Batches as few tensors between Python and TensorFlow, and as features and labels behind it.

All columns of a dtype are one matrix, a row for each column, of which TensorFlow's Unstack makes
the columns without a copy. A group is the matrix that its feature is, a row for each sample.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf


class Packing:
    """The form of a batch.

    Args:
        columns: complete columns.
        labels: None, the name of a column, or several names.
        groups: by the name of a feature, the names of the columns that it has side by side.
        size: rows of every batch, or None.
    """

    def __init__(self, columns, labels, groups, size):
        self._by_dtype, self._ragged, self._size = {}, [], size
        self._labels, self._groups = labels, groups
        self._columns = {column.name: column for column in columns}
        grouped = {name for names in groups.values() for name in names}
        for column in columns:
            if column.is_list:
                self._ragged.append(column)
            elif column.name not in grouped:
                self._by_dtype.setdefault(column.dtype, []).append(column.name)

    def signature(self):
        """The specs of what `pack` returns."""
        specs = [
            tf.TensorSpec([len(names), self._size], tf.as_dtype(dtype))
            for dtype, names in self._by_dtype.items()
        ]
        specs += [
            tf.TensorSpec([self._size, len(names)], tf.as_dtype(self._columns[names[0]].dtype))
            for names in self._groups.values()
        ]
        if self._ragged:
            rows = None if self._size is None else self._size + 1
            specs.append(tf.TensorSpec([len(self._ragged), rows], tf.int64))
        specs += [tf.TensorSpec([None], tf.as_dtype(column.dtype)) for column in self._ragged]
        return tuple(specs)

    def pack(self, arrays):
        """A tuple of NumPy's arrays, of arrays by column name."""
        packed = [np.stack([arrays[name] for name in names]) for names in self._by_dtype.values()]
        for names in self._groups.values():
            packed.append(np.stack([arrays[name] for name in names], axis=1))
        if self._ragged:
            packed.append(np.stack([arrays[column.name].splits for column in self._ragged]))
        packed += [np.ascontiguousarray(arrays[column.name].values) for column in self._ragged]
        return tuple(packed)

    def unpack(self, *packed):
        """The features, or (features, labels), of the tensors of `pack`."""
        packed, values = list(packed), {}
        for names in self._by_dtype.values():
            values.update(zip(names, tf.unstack(packed.pop(0))))
        groups = {name: packed.pop(0) for name in self._groups}
        if self._ragged:
            splits = tf.unstack(packed.pop(0))
            for column, flat, rows in zip(self._ragged, packed, splits):
                values[column.name] = tf.RaggedTensor.from_row_splits(flat, rows, validate=False)
        labels = self._labels_of(values)
        features = {**{n: values[n] for n in self._columns if n in values}, **groups}
        return features if labels is None else (features, labels)

    def _labels_of(self, values):
        if self._labels is None:
            return None
        if isinstance(self._labels, str):
            return values.pop(self._labels)
        return {name: values.pop(name) for name in self._labels}
