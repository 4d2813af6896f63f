"""The keyed tables of the process."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

_tables: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def remember(table: Any) -> None:
    """Lists an EmbeddingVariable as long as it lives."""
    _tables[id(table)] = table


def live_tables() -> list[Any]:
    """The EmbeddingVariables that live, but for those of a graph of TensorFlow 1, in the order in
    which they were made."""
    eager = tf.__internal__.EagerTensor
    return [table for table in _tables.values() if isinstance(table.table_handle, eager)]
