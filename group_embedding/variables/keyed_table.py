"""`keyed_table`: a table of keys by plain arguments."""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

from group_embedding.annotations import DTypeLike
from group_embedding.variables.embedding_variable import EmbeddingVariable
from group_embedding.variables.get_variable import get_embedding_variable
from group_embedding.variables.keyed_options import KeyedOptions


def keyed_table(
    name: str,
    dim: int,
    *,
    key_dtype: DTypeLike = tf.int64,
    dtype: DTypeLike = tf.float32,
    trainable: bool = True,
    placement: str | None = None,
    **options: Any,
) -> EmbeddingVariable:
    """Makes a table whose rows are found by key.

    Any integer of `key_dtype` is a key. A key gets a row only when it is trained. Lookups without a
    gradient never insert keys. Wrapped optimizers (`ge.optimizers.wrap`) train the table.

    Args:
        name: of the table.
        dim: length of a row, 1 to 4096.
        key_dtype: int32, int64, uint32 or uint64.
        dtype: of rows: float32, float16 or bfloat16.
        trainable: if not, no lookup inserts keys and no step changes rows.
        placement: over several ranks, 'distributed': the hash of a key says on which rank it is; or
            `'localized:<rank>'`: all keys are on that rank; with ':sums' behind it, owners send one
            sum of a sample's rows; with ':two_levels', a row crosses once to each host. None: the
            default of the job.
        options: those of `KeyedOptions`: what rows start as, which keys get a row and lose it, and
            where rows lie.

    Returns:
        An EmbeddingVariable.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names the table.

    Example:

    >>> users = ge.keyed_table("users", dim=2, initializer=tf.ones_initializer(), admit_after=2)
    >>> ids = tf.ragged.constant([[-7, 2**40], []], dtype=tf.int64)
    >>> ge.lookup_sparse([users], [ids], "sum")[0].numpy().tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    try:
        plain = KeyedOptions(**options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"table '{name}': {error}") from None
    return get_embedding_variable(
        name, dim, key_dtype, dtype, trainable=trainable, ev_option=plain, placement=placement
    )


def _with_options(function):
    """The signature of a function, with the attributes of KeyedOptions in the place of `options`:
    what `help` and editors show."""
    *own, _ = inspect.signature(function).parameters.values()
    options = inspect.signature(KeyedOptions).parameters.values()
    keyword_only = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    return inspect.signature(function).replace(parameters=[*own, *keyword_only])


keyed_table.__signature__ = _with_options(keyed_table)  # type: ignore[attr-defined]
