"""Plain values as text: JSON, or YAML."""

from __future__ import annotations

import json
import os
from typing import Any


def load(path: str | os.PathLike) -> Any:
    """The values of a file: of JSON where its name ends in .json, of YAML otherwise."""
    with open(path) as file:
        return parse(file.read(), is_json=str(path).endswith(".json"))


def parse(text: str, is_json: bool = False) -> Any:
    """The values of a text.

    Raises:
        ValueError: the text is no YAML, or no JSON.
    """
    try:
        return json.loads(text) if is_json else yaml().safe_load(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, {error}") from None
    except yaml().YAMLError as error:
        raise ValueError(f"expected YAML, {error}") from None


def yaml() -> Any:
    """The package yaml."""
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            "YAML is read by pyyaml: pip install pyyaml, or give a path that ends in .json"
        ) from error
    return yaml
