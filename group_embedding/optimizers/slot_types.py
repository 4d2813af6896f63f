"""The type of the slots of tables by row number, where it is not that of the rows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from group_embedding.config import TABLE_DTYPES, check_slot_dtype
from group_embedding.ranks.sharding.replica_tables import parts_of
from group_embedding.ranks.sharding.sharded_table import SAVED_DTYPE
from group_embedding.variables import EmbeddingVariable
from group_embedding.variables.refused_optimizers import have_keras_refuse

_MARK = "_ge_slot_dtype"
_SAVED_BY_OBJECT = BaseResourceVariable, tf.distribute.DistributedValues
# Variables that Keras's optimizers make of others beside slots.
_NO_SLOTS = ("average", "gradient_accumulator")


def set_slot_dtype(table: Any, slot_dtype: str | tf.DType) -> None:
    """Has the optimizer that trains a table by row number keep its slots in another type.

    To be called before the optimizer makes its slots: before a model is built, or a step is taken.
    `TableConfig(slot_dtype=...)` does so for the tables of a layer.

    Args:
        table: a `tf.Variable` or a variable of Keras, of shape [rows, dim], in float32, float16 or
            bfloat16.
        slot_dtype: "float32"; or "bfloat16", which halves the memory of slots beside rows in
            float32: those of Adam without amsgrad (`LazyAdam`, Keras's AdamW, `AdamAsyncOptimizer`
            too), Adagrad, `RowwiseAdam` and `RowwiseAdagrad`, by `wrap`. They are rounded up or
            down at random, the nearer the likelier, by the optimizer's `stochastic_rounding_seed`,
            or 0.

    Raises:
        TypeError: the table is an EmbeddingVariable, which has an option for it, or no variable.
        ValueError: the type is another, or the variable is not of that shape and type.

    Example:

    >>> table = tf.Variable(tf.ones([1000, 16]))
    >>> ge.optimizers.set_slot_dtype(table, "bfloat16")
    >>> optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adam(0.01))
    """
    variable = _inner(table)
    if isinstance(variable, EmbeddingVariable):
        raise TypeError(
            f"table '{_name(variable)}': expected a table by row number, got an EmbeddingVariable; "
            f"make it with slot_dtype={slot_dtype!r}"
        )
    if not isinstance(variable, tf.Variable):
        raise TypeError(f"set_slot_dtype: expected a variable, got {table!r}")
    owner, dtype = f"table '{_name(variable)}'", tf.as_dtype(variable.dtype).base_dtype
    chosen = check_slot_dtype(owner, slot_dtype)
    if variable.shape.rank != 2 or dtype.name not in TABLE_DTYPES:
        raise ValueError(
            f"{owner}: expected a variable of shape [rows, dim] in {', '.join(TABLE_DTYPES)}, got "
            f"{dtype.name} of shape {variable.shape}"
        )
    have_keras_refuse()
    for part in {id(part): part for part in (variable, *parts_of(variable))}.values():
        setattr(part, _MARK, chosen)
        if not isinstance(part, _ChosenSlots):
            part.__class__ = _chosen_slots(type(part))  # type: ignore[arg-type]


def slot_dtype_of(variable: Any) -> tf.DType | None:
    """The type that was set for the slots of a table by row number; None: that of its rows."""
    chosen = getattr(_inner(variable), _MARK, None)
    return None if chosen is None else tf.as_dtype(chosen)


def rounds_slots(variable: Any) -> bool:
    """True if the slots of a table, by row number or by key, are rounded at random."""
    if isinstance(variable, EmbeddingVariable):
        return variable.rounds_slots
    return slot_dtype_of(variable) == tf.bfloat16


def let_train(variable: Any) -> None:
    """Says that the optimizer which trains a variable makes its slots by `slots_made_of`."""
    variable = _inner(variable)
    for part in (variable, *parts_of(variable)):
        if isinstance(part, _ChosenSlots):
            part._optimizer_is_wrapped = True


class OfSlots:
    """A variable of Keras 3 as the reference of which optimizers make slots, in the slots' type.
    Keras and strategies, which place slots beside it, take it for the variable itself."""

    def __init__(self, variable):
        self._variable = variable
        self.dtype = slot_dtype_of(variable).name

    @property  # type: ignore[misc]  # as that of `object` may be written
    def __class__(self):
        return type(self._variable)

    def __getattr__(self, name):
        return getattr(self._variable, name)


def has_slot_dtype(variable: Any, name: str) -> bool:
    """True if a type was set for the slots of a table, of which an optimizer makes this one."""
    return slot_dtype_of(variable) is not None and name not in _NO_SLOTS


@contextlib.contextmanager
def slots_made_of(variable: Any) -> Iterator[None]:
    """Inside, variables are made as slots of a table: of the type that was set for them."""
    dtype = slot_dtype_of(variable)
    rows_dtype = tf.as_dtype(_inner(variable).dtype).base_dtype

    def create(make, **kwargs):
        value = kwargs["initial_value"]
        cast = functools.partial(_cast, value, dtype)
        kwargs |= {"initial_value": cast if callable(value) else cast(), "dtype": dtype}
        slot = make(**kwargs)
        if dtype == tf.bfloat16 != rows_dtype and isinstance(slot, _SAVED_BY_OBJECT):
            setattr(slot, SAVED_DTYPE, tf.float32)
            slot.__class__ = _saved_in_its_type(type(slot))
        return slot

    with tf.init_scope(), tf.variable_creator_scope(create):
        yield


def check_gradients(grads_and_vars: Any) -> None:
    """Refuses dense gradients of tables whose slots have a type that stock's rules do not take."""
    for gradient, variable in grads_and_vars:
        if gradient is None or isinstance(gradient, tf.IndexedSlices):
            continue
        if (dtype := slot_dtype_of(variable)) is not None:
            raise TypeError(
                f"table '{_name(_inner(variable))}': expected a gradient of rows, as "
                f"IndexedSlices, as slot_dtype='{dtype.name}' is given, got "
                f"{described(gradient)}; look the table up by ids alone, without tf.while_loop and "
                "without Keras 3's gradient_accumulation_steps"
            )


def described(gradient: Any) -> str:
    """A dense gradient in words, without its values."""
    return f"a dense one of shape {gradient.shape} in {gradient.dtype.name}"


def check_slots(variable: Any, slots: Any) -> None:
    """Refuses slots that were made before the type of the table's slots was set."""
    dtype = slot_dtype_of(variable)
    for slot in slots:
        made = None if slot is None else tf.as_dtype(slot.dtype).base_dtype
        if dtype is not None and made not in (None, dtype):
            raise ValueError(
                f"table '{_name(variable)}': expected slots in {dtype.name}, got {made.name}; call "
                "set_slot_dtype before the optimizer makes its slots, and compile a model that was "
                "loaded with a new wrapped optimizer"
            )


def _cast(value, dtype, *args, **kwargs):
    return tf.cast(value(*args, **kwargs) if callable(value) else value, dtype)


def _inner(variable):
    value = None if isinstance(variable, tf.Variable) else getattr(variable, "_value", None)
    return value if isinstance(value, tf.Variable) else variable


def _name(variable):
    return variable.name.partition(":")[0]


class _ChosenSlots:
    """Mixed into the class of a table: optimizers that are not wrapped are refused, as their slots
    would have the type of the rows."""

    _optimizer_is_wrapped = False

    def refuse_optimizer(self):
        raise TypeError(
            f"table '{_name(self)}': expected a wrapped optimizer, as slot_dtype="
            f"'{getattr(self, _MARK)}' is given; use group_embedding.optimizers.wrap(optimizer), "
            "or an optimizer of group_embedding.optimizers"
        )

    @property
    def constraint(self):
        if not self._optimizer_is_wrapped:
            self.refuse_optimizer()  # TensorFlow 1's and legacy ones ask for nothing else
        return super().constraint


@functools.cache
def _chosen_slots(stock):
    return type(stock.__name__, (_ChosenSlots, stock), {"__module__": stock.__module__})


class _SavedInItsType:
    """Mixed into the class of a slot: object-based checkpoints have it as those of stock do."""

    def _serialize_to_tensors(self):
        (name,) = super()._serialize_to_tensors()
        return {name: tf.cast(self, getattr(self, SAVED_DTYPE))}

    def _restore_from_tensors(self, restored_tensors):
        cast = {name: tf.cast(saved, self.dtype) for name, saved in restored_tensors.items()}
        return super()._restore_from_tensors(cast)


@functools.cache
def _saved_in_its_type(stock):
    return type(stock.__name__, (_SavedInItsType, stock), {"__module__": stock.__module__})
