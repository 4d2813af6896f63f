"""The arguments of many lookups in one call: lists with one for each lookup, and words of a choice.
What is wrong raises ValueError, with the argument's name."""

import warnings

import numpy as np
import tensorflow as tf


def as_list(name, value):
    """A list that must be given, and not empty."""
    if _is_one(value):
        raise ValueError(
            f"{name}: expected a list with one per lookup, got a single {type(value).__name__} of "
            f"{value.dtype}; for one lookup write [{name}], a list of one"
        )
    if value is None or isinstance(value, str) or len(value) == 0:
        raise ValueError(f"{name} must be specified: expected a list with one per lookup")
    return list(value)


def _is_one(value):
    """Returns whether `value` is a single table, or the ids of a single lookup, rather than a
    list."""
    return isinstance(value, (np.ndarray, tf.compat.v1.SparseTensorValue)) or (
        hasattr(value, "shape") and hasattr(value, "dtype")
    )


def known_combiners(combiners):
    """Checks combiners. Called by public functions that have one decorator: a warning names the
    line of their caller."""
    if combiners is not None:
        return combiners
    warnings.warn("combiners is None; it will mean 'mean'", stacklevel=4)
    return "mean"


def lookup_names(of, names, count):
    """`feature_names`, or, where there are none, the places of the lookups in the list `of`."""
    names = names or [f"{of}[{i}]" for i in range(count)]
    check_length("feature_names", names, of, count)
    return list(names)


def per_lookup(name, value, count):
    """A list with one per lookup, of such a list or of one value for all."""
    if isinstance(value, (list, tuple)):
        check_length(name, value, "sp_ids", count)
        return list(value)
    return [value] * count


def check_length(name, value, other, count):
    if len(value) != count:
        raise ValueError(
            f"len of {name} must be equal to len of {other}: expected {count}, got {len(value)}"
        )


def check_is_none(name, value, why):
    if value is not None:
        raise ValueError(f"{name}: expected None {why}, got {value!r}")


def check_word(name, word, choices):
    if word not in choices:
        choices = ", ".join(f"'{choice}'" for choice in choices)
        raise ValueError(f"{name} must be one of {choices}, got {word!r}")


def check_positive(name, number):
    if not number > 0:
        raise ValueError(f"{name}: expected a positive number, got {number}")
