"""The keyed tables of the process."""

from __future__ import annotations

import weakref
from typing import Any

_tables: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def remember(table: Any) -> None:
    """Lists an EmbeddingVariable as long as it lives."""
    _tables[id(table)] = table


def live_tables() -> list[Any]:
    """The EmbeddingVariables that live, in the order in which they were made."""
    return list(_tables.values())
