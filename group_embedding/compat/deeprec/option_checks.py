"""Checks of the attributes of DeepRec's options, whose errors name the class and the attribute."""

import math

from group_embedding import config


def check_int(option, name, at_least):
    number = config.check_int(type(option).__name__, name, getattr(option, name), at_least)
    object.__setattr__(option, name, number)


def check_number(option, name, above=-math.inf, below=math.inf):
    config.check_number(type(option).__name__, name, getattr(option, name), above, below)


def check_kind(option, name, kinds, optional=False):
    value = getattr(option, name)
    if (optional and value is None) or isinstance(value, kinds):
        return
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    expected = " or ".join([*(["None"] if optional else []), *(k.__name__ for k in kinds)])
    raise TypeError(f"{type(option).__name__}: expected {name} to be {expected}, got {value!r}")
