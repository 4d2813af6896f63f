"""Snapshots of tables: in the graph of a Saver, and in eager code."""

import collections
import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from group_embedding.checkpoint.parts import agree_on_changes
from group_embedding.ops import save_table

_thread = threading.local()
_lock = threading.Lock()
_num_threads = 0  # that save changes only


class Eviction(NamedTuple):
    """The fields of Eviction in cc/table/table_options.h; `kind`: its kinds, joined by '+'."""

    kind: str = "none"
    steps_to_live: int = 0
    l2_weight: float = 0.0
    minutes_to_live: int = 0


@contextlib.contextmanager
def changes_only() -> Iterator[None]:
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
    """Returns whether a save of any thread is one of changes only, for callers in another thread
    than the saving one. If several threads save, a table may be saved by its changes instead of in
    full, which restores to the same content."""
    return _num_threads > 0


def take_snapshots(tables, changes):
    """A snapshot for each of `tables`, TableResources.

    All tables of a device are of one instant, whoever trains them. Those of several devices are if
    nobody trains meanwhile, as between two steps.

    Args:
        changes: a bool or a tensor: whether of the rows changed since the last full save.
    """
    by_device = collections.defaultdict(list)
    for table in tables:
        by_device[table.resource_handle.device].append(table)
    taken = {device: _take_snapshot(some, changes) for device, some in by_device.items()}
    return [taken[table.resource_handle.device] for table in tables]


def _take_snapshot(tables, changes):
    """The one of tables on one device."""
    return save_table.snapshot_tables(
        [table.resource_handle for table in tables],
        [_step_of(table) for table in tables],
        [_eviction_of(table) for table in tables],
        agree_on_changes(tables, changes),
    )


def _step_of(table):
    step = table.current_step() if hasattr(table, "current_step") else None
    if step is None and "global_step" in _eviction_of(table).kind:
        warnings.warn(
            f"table '{table.name}': GlobalStepEvict evicts nothing as it is saved, since it does "
            "not know the step of now; set the variable's attribute `step`, or, in a graph of "
            "TensorFlow 1, make a global step",
            stacklevel=2,
        )
    return -1 if step is None else step


def _eviction_of(table):
    """A table that was loaded from a SavedModel evicts nothing."""
    return getattr(table, "eviction", None) or Eviction()


SNAPSHOT = "table_snapshot"  # the name of a placeholder; of more than one, "table_snapshot_1", ...


class Snapshots:
    """The snapshots that a Saver takes of its tables, one per device, whose graph is being built.

    Tables come one by one. Each makes a new op of all that have come of its device, and the
    placeholder that all of them read is moved to it.
    """

    def __init__(self, scope):
        self._tables = collections.defaultdict(list)
        self._snapshots = {}
        self._scope = scope
        with tf.name_scope(f"{scope}/"):
            self._changes_only = tf.compat.v1.placeholder_with_default(
                False, [], name="changes_only"
            )

    def add(self, table):
        """Adds a table, and returns the tensor that represents the snapshot."""
        device = table.resource_handle.device
        self._tables[device].append(table)
        taken = _take_snapshot(self._tables[device], self._changes_only)
        if device not in self._snapshots:
            with tf.name_scope(f"{self._scope}/"), tf.device("/CPU:0"):
                self._snapshots[device] = tf.compat.v1.placeholder_with_default(
                    taken, [], name=SNAPSHOT
                )
        else:
            self._snapshots[device].op._update_input(0, taken)
        return self._snapshots[device]
