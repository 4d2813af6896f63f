"""Reading the keys of one object of HugeCTR's JSON: each is read once, and none is left unread."""

from __future__ import annotations

import difflib
from typing import Any

_MISSING = object()


class Fields:
    """The keys of one JSON object.

    Args:
        owner: what the object is, for messages: "layer 'fc1' (InnerProduct)".
        values: the object.

    Raises:
        ValueError: it is no object.
    """

    def __init__(self, owner: str, values: Any) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{owner}: expected an object, got {values!r:.100}")
        self.owner = owner
        self._left = dict(values)
        self._known: list[str] = []

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = _MISSING) -> Any:
        """The value of a key, which the object then has no more.

        Args:
            key: the key.
            kind: the type, or types, that the value has; a float may be written as an int.
            default: the value of a missing key; none: the key must be there.

        Raises:
            ValueError: the key is missing, or its value is of another type.
        """
        self._known.append(key)
        if key not in self._left:
            if default is _MISSING:
                raise ValueError(f"{self.owner}: expected the key '{key}'")
            return default
        value = self._left.pop(key)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if float in kinds:
            kinds = (*kinds, int)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(dict.fromkeys(k.__name__ for k in kinds))
            raise ValueError(f"{self.owner}: expected {names} for '{key}', got {value!r}")
        return value

    def take_object(self, key: str) -> Fields:
        """The keys of an object inside; of an empty one, where the key is missing."""
        return Fields(f"{self.owner}, '{key}'", self.take(key, dict, {}))

    def take_names(self, key: str, default: Any = _MISSING) -> list[str]:
        """A name, or several, as a list."""
        value = self.take(key, (str, list), default)
        return [value] if isinstance(value, str) else list(value)

    def left(self) -> dict[str, Any]:
        """The keys that nobody took, with their values."""
        return dict(self._left)

    def end(self) -> None:
        """Checks that all keys were taken.

        Raises:
            ValueError: one was not; the message has the nearest key that is known.
        """
        for key in self._left:
            near = difflib.get_close_matches(key, self._known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            known = ", ".join(dict.fromkeys(self._known)) or "none"
            raise ValueError(f"{self.owner}: expected the keys {known}, got '{key}'{hint}")
