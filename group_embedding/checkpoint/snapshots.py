"""What tables hold at one instant: in the graph of a Saver, and eagerly."""

import contextlib
import threading
from typing import NamedTuple

import tensorflow as tf

from group_embedding.ops import save_table

_thread = threading.local()
_lock = threading.Lock()
_num_threads = 0  # that save changes only


class Eviction(NamedTuple):
    """As cc/table/embedding_table.h has it."""

    kind: str = "none"
    steps_to_live: int = 0
    l2_weight: float = 0.0


@contextlib.contextmanager
def changes_only():
    """Eager saves in this context save only the rows that changed since the last full save."""
    global _num_threads
    before = saves_changes_only()
    _thread.changes_only = True
    with _lock:
        _num_threads += 1
    try:
        yield
    finally:
        _thread.changes_only = before
        with _lock:
            _num_threads -= 1


def saves_changes_only():
    return getattr(_thread, "changes_only", False)


def any_thread_saves_changes_only():
    """For those who are called by another thread than the one that saves. Where several save, a
    table may be saved by its changes that was to be saved in full, which restores to the same."""
    return _num_threads > 0


def take_snapshot(tables, changes):
    """A snapshot of `tables`, TableResources.

    Args:
        changes: a bool or a tensor: whether of the rows changed since the last full save.
    """
    return save_table.snapshot_tables(
        [table.resource_handle for table in tables],
        [_step_of(table) for table in tables],
        [_eviction_of(table) for table in tables],
        changes,
    )


def _step_of(table):
    step = table.current_step() if hasattr(table, "current_step") else None
    return -1 if step is None else step


def _eviction_of(table):
    """A table that was loaded from a SavedModel evicts nothing."""
    return getattr(table, "eviction", None) or Eviction()


class Snapshots:
    """The one snapshot that a Saver takes of all its tables, whose graph is being built.

    Tables come one by one. Each makes a new op of all that have come, and the placeholder that all
    of them read is moved to it.
    """

    def __init__(self, scope):
        self._tables = []
        self._snapshot = None
        with tf.name_scope(f"{scope}/"):
            self._changes_only = tf.compat.v1.placeholder_with_default(
                False, [], name="changes_only"
            )

    def add(self, table):
        """The tensor that stands for the snapshot."""
        self._tables.append(table)
        taken = take_snapshot(self._tables, self._changes_only)
        if self._snapshot is None:
            scope = self._changes_only.op.name.rpartition("/")[0]
            with tf.name_scope(f"{scope}/"):
                self._snapshot = tf.compat.v1.placeholder_with_default(
                    taken, [], name="table_snapshot"
                )
        else:
            self._snapshot.op._update_input(0, taken)
        return self._snapshot
