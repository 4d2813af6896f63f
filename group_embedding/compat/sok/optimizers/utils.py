"""`split_embedding_variable_from_others`, where SOK version 1 has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from group_embedding.compat.sok.sok_tables import filter_variables


def split_embedding_variable_from_others(
    variables: Sequence[Any],
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Splits variables into embedding variables and all others, each in the order given.

    Args:
        variables: a list of variables, such as `model.trainable_variables`.

    Returns:
        Two tuples.

    Example:

    >>> layer = ge.sok.All2AllDenseEmbedding(100, 4, slot_num=1, nnz_per_slot=1)
    >>> tables, others = ge.sok.split_embedding_variable_from_others(
    ...     [*layer.trainable_variables, tf.Variable([1.])])
    >>> len(tables), len(others)
    (1, 1)
    """
    tables, others = filter_variables(variables)
    return tuple(tables), tuple(others)
