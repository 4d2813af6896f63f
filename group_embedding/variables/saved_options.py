"""Options as JSON values and back, for models and columns that are written as configs."""

import dataclasses
import enum
import importlib

import tensorflow as tf

from group_embedding import import_paths

_NAMES = ("KeyedOptions", *import_paths.OPTIONS)


def option_to_config(value):
    """An option, or a value in one -> what JSON can hold.

    Raises:
        ValueError: an initializer that is not Keras's cannot be written down.
    """
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {
            "option": type(value).__name__,
            **{field.name: option_to_config(getattr(value, field.name)) for field in fields},
        }
    if isinstance(value, enum.Enum):
        return {"enum": type(value).__name__, "name": value.name}
    if isinstance(value, tf.DType):
        return {"dtype": value.name}
    if isinstance(value, tuple):
        return list(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tf.keras.initializers.Initializer):
        return {"initializer": tf.keras.initializers.serialize(value)}
    raise ValueError(
        "expected an initializer of tf.keras.initializers, which can be written down, got "
        f"{value!r}"
    )


def option_from_config(config):
    """The inverse of `option_to_config`."""
    if not isinstance(config, dict):
        return config
    config = dict(config)
    if "enum" in config:
        return _class(config["enum"])[config["name"]]
    if "dtype" in config:
        return tf.as_dtype(config["dtype"])
    if "option" in config:
        option = _class(config.pop("option"))
        return option(**{name: option_from_config(value) for name, value in config.items()})
    return tf.keras.initializers.deserialize(config["initializer"])


def _class(name):
    """A class of options, by its name in the package; DeepRec's are loaded when a file has them."""
    if name not in _NAMES:
        raise ValueError(f"expected an option to be one of {', '.join(_NAMES)}, got '{name}'")
    return getattr(importlib.import_module("group_embedding"), name)
