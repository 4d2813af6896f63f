"""The keys that budgets evict, given to a function or written into files while training goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Union

import tensorflow as tf

from group_embedding.ops.table_keys import Export
from group_embedding.variables.embedding_variable import EmbeddingVariable
from group_embedding.variables.evicted_files import EvictedFiles
from group_embedding.variables.periodic_hook import PeriodicHook

# Takes the name of a table, and its (keys, values, versions, freqs) as NumPy arrays.
EvictedTo = Union[str, os.PathLike, Callable[[str, Any], None]]


def hand_out_evicted(tables: Iterable[EmbeddingVariable], to: EvictedTo) -> int:
    """Hands out the keys that tables have evicted for their budgets since the last call.

    Each rank hands out the keys that it had. A key is handed out once; what a call has taken is no
    longer in the table, also where `to` raises an error. A process that is killed has not handed
    out what it evicted since its last call. After a restart from a checkpoint the steps since then
    run again, and keys that they evict are handed out again: the last time counts.

    Args:
        tables: EmbeddingVariables. Those with `hand_out="nothing"` are left out.
        to: a function, called with the name of a table and (keys, values, versions, freqs) as
            NumPy arrays, if the table has evicted keys; or a folder, in which a call writes a file
            `<table>/rank<rank>-<number>.npz` with these arrays, read by `np.load`. A file appears
            when it is whole. bfloat16 values are written as float32. Parts `.` and `..` of a
            table's name become `%2E` and `%2E%2E`, and `%` becomes `%25`.

    Returns:
        How many keys were handed out.

    Raises:
        ValueError: no table hands out keys, or two of one name would share a folder.

    Example:

    >>> items = ge.keyed_table(
    ...     "sold", 2, max_keys=2, budget_of="rank", keep_share=1.0, hand_out="keys"
    ... )
    >>> items.insert([1, 2], tf.ones([2, 2]), versions=[5, 6])
    >>> items.insert([3], tf.ones([1, 2]), versions=[7])
    >>> ge.hand_out_evicted([items], lambda table, evicted: print(table, evicted.keys))
    sold [1]
    1
    """
    hand_over = hand_over_to(to)
    tables = tables_that_hand_out(tables)
    _check_names(hand_over, tables)
    num_keys = 0
    for table in tables:
        num_keys += _hand_over(hand_over, table, [part.numpy() for part in table.take_evicted()])
    return num_keys


class EvictedKeysHook(PeriodicHook):
    """Hands out the keys that the graph's EmbeddingVariables evict for their budgets.

    Example:

    ```python
    hook = ge.EvictedKeysHook("/data/evicted", every_n_steps=100)
    estimator.train(input_fn, hooks=[hook])
    ```

    Args:
        to: a function or a folder, as of `hand_out_evicted`.
        every_n_steps: after so many steps, and at the end, when tables first evict what a save of
            the last step evicts, wherever the hook that saves stands. Until then a table keeps what
            it has evicted, up to an eighth of its budget and what one eviction takes; older keys
            are dropped, and `EmbeddingVariable.budget_counts` counts them as `missed`.

    Raises:
        ValueError: the graph has no global step or no table that hands out keys, two of its tables
            would share a folder, or every_n_steps is below 1.
    """

    def __init__(self, to: EvictedTo, every_n_steps: int = 100) -> None:
        super().__init__(every_n_steps)
        self._hand_over = hand_over_to(to)

    def begin(self) -> None:
        super().begin()
        variables = tf.compat.v1.global_variables()
        self._tables = tables_that_hand_out(v for v in variables if is_keyed(v))
        _check_names(self._hand_over, self._tables)
        self._evicted = [table.take_evicted() for table in self._tables]
        self._evict = [table.evict() for table in self._tables]

    def run_at(self, session: Any, step: int) -> None:
        for table, evicted in zip(self._tables, session.run(self._evicted)):
            _hand_over(self._hand_over, table, evicted)

    def end(self, session: Any) -> None:
        # A saver behind this hook saves the last step after this call, and then the tables are
        # gone: what it would evict goes now.
        session.run(self._evict)
        self.run_at(session, -1)


def tables_that_hand_out(tables: Iterable[EmbeddingVariable]) -> list[EmbeddingVariable]:
    """The tables among those given that keep evicted keys until they are taken.

    Raises:
        ValueError: there is none.
    """
    tables = list(tables)
    found = [table for table in tables if table.options.hand_out != "nothing"]
    if not found:
        names = [_name_of(table) for table in tables]
        raise ValueError(
            "evicted keys: expected a table with a budget and hand_out='keys' or 'rows', got "
            f"{names or 'no keyed table'}"
        )
    return found


def is_keyed(variable: Any) -> bool:
    return isinstance(variable, EmbeddingVariable)


def hand_over_to(to: EvictedTo) -> Callable[[str, Any], None]:
    """The function that `to` means. Files of one have consecutive numbers."""
    return to if callable(to) else EvictedFiles(to)


def _check_names(hand_over, tables):
    """Refuses two tables whose files would be in one folder."""
    if not isinstance(hand_over, EvictedFiles):
        return
    by_name: dict[str, EmbeddingVariable] = {}
    for table in tables:
        name = _name_of(table)
        if by_name.setdefault(name, table) is not table:
            raise ValueError(
                "evicted keys: expected tables of different names, after which the folders of "
                f"their files are called, got two '{name}'; rename one, or give it a folder of its "
                "own by a call of its own"
            )


def _hand_over(hand_over, table, parts):
    evicted = Export(*parts)
    if len(evicted.keys) > 0:
        hand_over(_name_of(table), evicted)
    return len(evicted.keys)


def _name_of(table):
    return table.name.partition(":")[0]
