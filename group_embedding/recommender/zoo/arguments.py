"""Layers and models whose config is the list of their constructor's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from group_embedding.keras_compat import keras


class _Untracked:
    """Plain values that Keras does not track as it tracks a dict."""

    def __init__(self, values):
        self.values = values


class KeepsArguments:
    """Mixed into a class of Keras layers or models: `get_config` has the constructor's arguments by
    name, those with defaults and those of `**kwargs` among them. Tuples are lists there."""

    _arguments: _Untracked

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__new__(cls, *args, **kwargs)
        # Not by Keras's __setattr__, which is ready behind __init__ alone.
        object.__setattr__(made, "_arguments", _Untracked(_arguments_of(cls, args, kwargs)))
        return made

    def get_config(self) -> dict[str, Any]:
        return {**self._arguments.values, **super().get_config()}  # type: ignore[misc]


class Layer(KeepsArguments, keras.layers.Layer):
    """A Keras layer that keeps its arguments."""


def _arguments_of(cls, args, kwargs):
    signature = inspect.signature(cls.__init__)
    try:
        bound = signature.bind_partial(None, *args, **kwargs)
    except TypeError:  # which __init__ raises, too
        return {}
    bound.apply_defaults()
    _, *names = signature.parameters  # the first is self
    values = {}
    for name in names:
        is_rest = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        values.update(bound.arguments[name] if is_rest else {name: bound.arguments.get(name)})
    return {name: _as_plain(value) for name, value in values.items()}


def _as_plain(value):
    if isinstance(value, Mapping):
        return dict(value)
    is_list = isinstance(value, Collection) and not isinstance(value, (str, bytes))
    return list(value) if is_list else value
