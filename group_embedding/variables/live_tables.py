"""The keyed tables of the process."""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_tables: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_lists: contextvars.ContextVar[bool] = contextvars.ContextVar("lists_tables", default=True)


def remember(table: Any) -> None:
    """Lists an EmbeddingVariable as long as it lives."""
    if _lists.get():
        _tables[id(table)] = table


@contextlib.contextmanager
def unlisted() -> Iterator[None]:
    """Lists no table that is made inside: the package makes it for itself."""
    token = _lists.set(False)
    try:
        yield
    finally:
        _lists.reset(token)


def live_tables() -> list[Any]:
    """The EmbeddingVariables that live, but for those of a graph of TensorFlow 1, in the order in
    which they were made."""
    eager = tf.__internal__.EagerTensor
    # A list that is made at once, as other threads may make tables meanwhile.
    tables = [reference() for reference in _tables.valuerefs()]
    return [t for t in tables if t is not None and isinstance(t.table_handle, eager)]
