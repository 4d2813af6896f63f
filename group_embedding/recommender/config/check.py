"""Values -> the same with all defaults, checked against a JSON Schema."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from group_embedding.config import nearest

_TYPES = {
    "string": str,
    "object": dict,
    "array": list,
    "boolean": bool,
    "null": type(None),
}


class ConfigError(ValueError):
    """A config that cannot be used; the message has the key's path, its value and the choices."""


def complete(schema: dict[str, Any], values: Any, source: str) -> Any:
    """Checks values against a JSON Schema of the forms that `json_schema` has.

    Args:
        schema: types, enums, limits, items, properties, required and additionalProperties.
        values: plain values, as YAML or JSON have them.
        source: where they come from, for messages.

    Returns:
        A copy of the values, with the defaults of keys that are missing.

    Raises:
        ConfigError: the first value that does not fit.
    """
    return _complete(schema, copy.deepcopy(values), "", source)


def make(
    where: str,
    made: Callable[..., Any],
    arguments: Mapping[str, Any],
    *values: Any,
    others: Sequence[str] = (),
) -> Any:
    """Calls a class with its first arguments, and by name with others, the keys at `where`.

    Args:
        where: the file and the path of the keys, for messages.
        made: the class, or a function.
        arguments: by name.
        *values: the first arguments, which are no keys.
        others: further keys at `where`, for messages.

    Raises:
        ConfigError: the class has no argument of a name, or refuses a value.
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(made).parameters.values()
    known = [one.name for one in parameters if one.kind in kinds][len(values) :]
    for key in arguments:
        if key not in known:
            raise ConfigError(
                f"{where}.{key}: expected one of the keys {', '.join([*others, *known])}, got "
                f"'{key}'{nearest(key, known)}"
            )
    try:
        return made(*values, **arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _complete(schema, value, path, source):
    where = f"{source}: {path or 'the file'}"
    if "enum" in schema:
        if value not in schema["enum"] or isinstance(value, bool):
            choices = ", ".join("null" if c is None else str(c) for c in schema["enum"])
            raise ConfigError(
                f"{where}: expected one of {choices}, got {value!r}{nearest(value, schema['enum'])}"
            )
        return value
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_is_a(value, kind) for kind in kinds):
        raise ConfigError(f"{where}: expected {_either(kinds)}, got {value!r:.100}{_hint(value)}")
    _check_limits(schema, value, where)
    if isinstance(value, list) and "items" in schema:
        return [
            _complete(schema["items"], one, f"{path}[{number}]", source)
            for number, one in enumerate(value)
        ]
    if isinstance(value, dict) and "properties" in schema:
        return _complete_object(schema, value, path, source)
    return value


def _complete_object(schema, values, path, source):
    properties = schema["properties"]
    dotted = f"{path}." if path else ""
    for key in values:
        if key not in properties and not schema["additionalProperties"]:
            raise ConfigError(
                f"{source}: {dotted}{key}: expected one of the keys {', '.join(properties)}, got "
                f"'{key}'{nearest(key, properties)}"
            )
    for key in schema.get("required", ()):
        if key not in values:
            raise ConfigError(f"{source}: {dotted}{key}: expected this key, which is missing")
    completed = {}
    for key, stated in properties.items():
        if key in values:
            completed[key] = _complete(stated, values[key], f"{dotted}{key}", source)
        elif "default" in stated:
            completed[key] = copy.deepcopy(stated["default"])
        elif stated.get("type") == "object":
            completed[key] = _complete(stated, {}, f"{dotted}{key}", source)
    return {**completed, **{k: v for k, v in values.items() if k not in properties}}


def _check_limits(schema, value, where):
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
        if least is not None and value < least:
            raise ConfigError(f"{where}: expected at least {least}, got {value}")
        if above is not None and value <= above:
            raise ConfigError(f"{where}: expected more than {above}, got {value}")
    if isinstance(value, list) and len(value) < schema.get("minItems", 0):
        raise ConfigError(f"{where}: expected at least {schema['minItems']} items, got none")


def _is_a(value, kind):
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    return isinstance(value, _TYPES[kind])


def _either(kinds):
    articles = {"array": "a list", "integer": "an integer", "object": "an object"}
    return " or ".join(articles.get(k, "null" if k == "null" else f"a {k}") for k in kinds)


def _hint(value):
    """YAML 1.1 reads 1e-3 as text."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return ""
    if not isinstance(value, str):
        return ""
    digits, _, exponent = repr(number).partition("e")
    point = "" if "." in digits or not exponent else ".0"
    return f"; write it as {digits}{point}{'e' if exponent else ''}{exponent}"
