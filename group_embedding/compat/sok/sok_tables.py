"""`Variable`: tables with a number of rows; and what is said of tables of either kind."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.lookups import tf_variable
from group_embedding.placement import (
    DISTRIBUTED,
    DISTRIBUTED_SUMS,
    TWO_LEVELS,
    localized_rank,
)
from group_embedding.ranks.sharding import exchange_of, make_table, sharded_table
from group_embedding.types import DTypeLike, Initializer, TensorLike
from group_embedding.variables import EmbeddingVariable

_MARK = "_group_embedding_sok"
_numbers = {"sok_variable": itertools.count(), "sok_dynamic_Variable": itertools.count()}


def Variable(  # noqa: N802
    initial_value: TensorLike | None = None,
    trainable: bool = True,
    name: str | None = None,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | None = None,
    initializer: Initializer = None,
    mode: str | None = DISTRIBUTED,
) -> Any:
    """Makes a table of shape [rows, dim] whose rows are spread over the ranks.

    Give either `initial_value`, or `shape` and `initializer`; the same on all ranks.

    Args:
        initial_value: the whole table: an array, a tensor, or a callable that returns one.
        trainable: whether tapes watch it.
        name: of the table; None: a number of its own. Dumps know tables by it.
        dtype: None: that of `initial_value`, or float32.
        shape: of the whole table.
        initializer: of the whole table: one of TensorFlow or Keras, or its name.
        mode: 'distributed': rank r holds the rows r, r + N, ...; `'localized:<rank>'`: that one
            holds them all. None means 'distributed'.

    Returns:
        A tf.Variable with the rows of this rank: with one rank, all of them. Its `target_gpu` is
        the rank of a 'localized' table, -1 of a 'distributed' one.

    Raises:
        ValueError: both ways at once or neither, a table that is not [rows, dim], another mode, or
            a rank that does not exist.

    Example:

    >>> table = ge.sok.Variable(np.arange(6).reshape(3, 2), dtype=tf.float32)
    >>> ids = tf.ragged.constant([[0, 2], []], dtype=tf.int64)
    >>> ge.sok.lookup_sparse(table, ids, combiners="sum").numpy().tolist()
    [[4.0, 6.0], [0.0, 0.0]]
    """
    name = name or next_name("sok_variable")
    owner = f"table '{name}'"
    is_given = initial_value is not None
    if is_given == (initializer is not None) or (shape is None and not is_given):
        raise ValueError(
            f"{owner}: expected either initial_value, or shape and initializer, got "
            f"initial_value={initial_value!r}, shape={shape!r}, initializer={initializer!r}"
        )
    if is_given:
        initial_value = initial_value() if callable(initial_value) else initial_value
        start = tf.convert_to_tensor(initial_value, dtype)
        dtype = start.dtype
    else:
        start, dtype = tf.keras.initializers.get(initializer), dtype or tf.float32
    whole = tf.TensorShape(start.shape if is_given else shape)
    if whole.rank != 2 or not whole.is_fully_defined():
        raise ValueError(f"{owner}: expected shape [rows, dim], got {whole}")
    if shape is not None and not whole.is_compatible_with(shape):
        raise ValueError(f"{owner}: expected shape {shape}, got an initial_value of {whole}")

    def create(local_shape, rows):
        value = (lambda: rows(local_shape, dtype=dtype)) if callable(rows) else rows
        return tf.Variable(value, trainable=trainable, name=name, dtype=dtype)

    mode = check_mode(owner, mode)
    table = mark_table(make_table(whole, start, create, mode))
    table.target_gpu = target_of(mode)
    return table


def filter_variables(vars: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Splits variables into tables and all others, each in the order given.

    Tables are those of `Variable`, `DynamicVariable` and SOK's layers, EmbeddingVariables, and
    whatever else is spread over ranks: their gradients need no reduction.

    Args:
        vars: a list of variables, of TensorFlow or Keras.

    Returns:
        Two lists.

    Example:

    >>> dense, table = tf.Variable([1.]), ge.sok.Variable([[1., 2.]])
    >>> tables, others = ge.sok.filter_variables([dense, table])
    >>> len(tables), tables[0] is table, others[0] is dense
    (1, True, True)
    """
    tables, others = [], []
    for variable in vars:
        (tables if is_table(variable) else others).append(variable)
    return tables, others


def is_table(variable):
    """Returns whether `filter_variables` counts a variable as a table."""
    inner = tf_variable(variable)
    is_marked = isinstance(inner, EmbeddingVariable) or hasattr(inner, _MARK)
    return is_marked or exchange_of(variable) is not None


def mark_table(variable):
    """Has `is_table` know a tf.Variable, or one of Keras, which may be whole. Returns it."""
    setattr(tf_variable(variable), _MARK, True)
    return variable


def name_of(table):
    """The name under which a table is dumped."""
    shard = sharded_table(table)
    return shard.name if shard else tf_variable(table).name.partition(":")[0]


def check_mode(owner, mode):
    """The placement that a mode stands for."""
    mode = mode or DISTRIBUTED
    words = DISTRIBUTED, DISTRIBUTED_SUMS, TWO_LEVELS
    if mode in words or localized_rank(mode) is not None:
        return mode
    raise ValueError(
        f"{owner}: expected mode to be 'distributed' or 'localized:<rank>', either with ':sums' or "
        f"':two_levels' behind it, got {mode!r}"
    )


def target_of(mode):
    """`target_gpu`: the rank that has all rows; -1: each has some."""
    rank = localized_rank(mode)
    return -1 if rank is None else rank


def to_initializer(owner, initializer):
    """Converts SOK's initializer into one of Keras."""
    if initializer is None or (isinstance(initializer, str) and initializer in ("", "random")):
        return tf.keras.initializers.RandomUniform(-0.05, 0.05)
    try:
        return tf.keras.initializers.Constant(float(initializer))
    except (TypeError, ValueError):
        pass
    try:
        return tf.keras.initializers.get(initializer)
    except ValueError as error:
        raise ValueError(
            f"{owner}: expected initializer to be 'random', a number, or an initializer of "
            f"TensorFlow or Keras, got {initializer!r}"
        ) from error


def next_name(prefix):
    return f"{prefix}_{next(_numbers[prefix])}"
