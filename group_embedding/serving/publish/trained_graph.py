"""The graph of TensorFlow 1 that a publisher publishes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.checkpoint import part_of, table_changes
from group_embedding.ranks.sharding import sharded_table
from group_embedding.serving.publish.shard_rows import ShardRows

v1 = tf.compat.v1


class TrainedGraph:
    """The variables of the default graph, which a session trains. Made before the graph is final.

    Args:
        export: A function of the prefix of a checkpoint and of a folder, which writes the
            checkpoint's model below the folder as a SavedModel and returns its path.
        saver: Saves the checkpoints.
        abandoned_seconds: A save's snapshot that was taken before so long is dropped, if no save
            has written a table since.

    Attributes:
        session: The session that trains the graph; set once it is there.
        shards: {key: ShardRows} of tables by row number that are spread over ranks.
    """

    def __init__(
        self, export: Callable[[str, str], str | bytes], saver: Any, abandoned_seconds: float
    ) -> None:
        self._export = export
        self._saver = saver
        self.session: Any = None
        self.shards: dict[str, ShardRows] = {}
        variables = v1.global_variables()
        tables = {v.rows.name: v.rows for v in variables if hasattr(v, "key_dtype")}
        self._names = list(tables)
        # Over ranks each rank has the tables of which it has rows.
        self._tables = {name: table for name, table in tables.items() if part_of(table)}
        self._all = {_key_of(v): v for v in variables if not hasattr(v, "key_dtype")}
        self._variables: dict[str, Any] = {}
        self._global_step = v1.train.get_global_step()
        self._follower = v1.placeholder(tf.int64, [])
        self._step = v1.placeholder(tf.int64, [])
        self._marks = {name: v1.placeholder(tf.int64, [None]) for name in self._tables}
        handles = {name: table.resource_handle for name, table in self._tables.items()}
        self._follow = {
            name: table_changes.follow_changes(handle, self._follower, self._marks[name])
            for name, handle in handles.items()
        }
        self._taken = self._snapshots(abandoned_seconds)
        self._read = {
            name: table_changes.read_changes(handle, self._follower)
            for name, handle in handles.items()
        }
        self._drop, self._unfollow = (
            [table_changes.drop_changes(h, self._follower, unfollow) for h in handles.values()]
            for unfollow in (False, True)
        )

    def export(self, folder: str) -> None:
        """Writes the model as it is now as a SavedModel."""
        work = tempfile.mkdtemp(prefix="ge-base-")
        try:
            prefix = os.path.join(work, "model")
            prefix = self._saver.save(self.session, prefix, write_meta_graph=False)
            self._find_served(self._exported(prefix, work, folder))
        finally:
            shutil.rmtree(work, ignore_errors=True)

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """{name of a table: (the part that this process has, number of parts)}."""
        return {name: part_of(table) for name, table in self._tables.items()}

    def step(self) -> int:
        """The global step; -1: there is none."""
        return -1 if self._global_step is None else int(self._run(self._global_step))

    def follow(self, follower: int) -> None:
        """Begins to follow the changes of all tables."""
        self.acknowledge(follower, {name: np.zeros(0, np.int64) for name in self._tables})

    def snapshot(self, follower: int, step: int) -> bool:
        """Takes a snapshot of the changes of all tables; False: one is being saved."""
        taken = self._run(self._taken, {self._follower: follower, self._step: step})
        if not all(taken):
            self.drop(follower)
        return all(taken)

    def copy_variables(self) -> dict[str, np.ndarray]:
        """{name: the value of now} of the variables that the base has."""
        # Copies: a session may give out the memory of a variable itself.
        return {name: np.array(value) for name, value in self._run(self._variables).items()}

    def read(self, follower: int) -> dict[str, Any]:
        """{name of a table: its Changes}, as NumPy values, since the snapshot."""
        return self._run(self._read, {self._follower: follower})

    def acknowledge(self, follower: int, marks: dict[str, np.ndarray]) -> None:
        """Counts later changes of each table from its mark."""
        feed = {self._marks[name]: mark for name, mark in marks.items()}
        self._run([self._follow[name] for name in marks], {self._follower: follower, **feed})

    def drop(self, follower: int, unfollow: bool = False) -> None:
        """Frees changes that were not read; `unfollow`: follows no changes any more."""
        self._run(self._unfollow if unfollow else self._drop, {self._follower: follower})

    def _exported(self, prefix, work, folder):
        """Exports a checkpoint to a folder; returns the shapes of the tensors that are there."""
        written = os.path.join(work, "export")
        os.mkdir(written)
        written = os.fsdecode(self._export(prefix, written))
        if not os.path.exists(os.path.join(written, "saved_model.pb")):
            raise ValueError(
                "PublisherHook: expected `export` to return the folder of a SavedModel, got "
                f"'{written}'"
            )
        shutil.copytree(written, folder, dirs_exist_ok=True)
        saved = tf.train.load_checkpoint(os.path.join(folder, "variables", "variables"))
        shapes = saved.get_variable_to_shape_map()
        missing = [name for name in self._names if f"{name}-rows" not in shapes]
        if missing:
            raise ValueError(
                f"PublisherHook: expected the SavedModel to have the tables {missing}, which are "
                f"trained, it has {sorted(n for n in shapes if n.endswith('-rows'))}"
            )
        return shapes

    def _run(self, fetches, feed=None):
        return self.session.run(fetches, feed)

    def _snapshots(self, abandoned_seconds):
        """An op for the tables of each device."""
        by_device: dict[str, list[Any]] = {}
        for table in self._tables.values():
            by_device.setdefault(table.resource_handle.device, []).append(table)
        return [
            table_changes.snapshot_changes(
                [table.resource_handle for table in tables],
                self._follower,
                self._step,
                [part_of(table) for table in tables],
                abandoned_seconds,
            )
            for tables in by_device.values()
        ]

    def _find_served(self, shapes):
        """Finds the variables that the graph and a SavedModel share."""
        for variable in self._all.values():
            if _is_part(variable) and _full_name(variable) in shapes:
                raise ValueError(
                    f"variable '{_full_name(variable)}': expected one that is published in one "
                    f"piece, got parts such as '{variable.op.name}'; make it without a partitioner"
                )
        self._variables = {
            name: variable
            for name, variable in self._all.items()
            if shapes.get(name) == variable.shape.as_list()
        }


def _key_of(variable):
    # The name of a variable in checkpoints; a part of one has its own.
    return variable.op.name if _is_part(variable) else _full_name(variable)


def _full_name(variable):
    # A partitioner that makes one part names it "x/part_0", which checkpoints have as "x".
    about = getattr(variable, "_save_slice_info", None)
    return variable.op.name if about is None else about.full_name


def _is_part(variable):
    # Partitioners make parts; strategies of ranks make shards, which are none.
    about = getattr(variable, "_save_slice_info", None)
    parts = about is not None and list(about.full_shape) != variable.shape.as_list()
    return parts and sharded_table(variable) is None
