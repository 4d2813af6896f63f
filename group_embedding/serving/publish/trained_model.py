"""The model that a publisher publishes: its base, its keyed tables and its variables."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model import save as tf_save
from tensorflow.python.trackable import trackable_utils

from group_embedding.checkpoint import RowsOfParts, SavedByObject, part_of, table_changes
from group_embedding.serving.publish.shard_rows import ShardRows

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class TrainedModel:
    """A Keras model or `tf.Module` in eager code.

    What is published is what the signatures of the SavedModel read. Known once a base was exported.

    Args:
        model: The Keras model or `tf.Module`.
        signatures: As of `tf.saved_model.save`.
        abandoned_seconds: A save's snapshot that was taken before so long is dropped, if no save
            has written a table since.

    Attributes:
        tables: The keyed tables, by name.
        variables: The other variables, by their keys in the checkpoint of the base.
        shards: {key: ShardRows} of tables by row number that are spread over ranks.
    """

    def __init__(self, model: Any, signatures: Any, abandoned_seconds: float) -> None:
        self._model = model
        self._abandoned_seconds = abandoned_seconds
        self._signatures = signatures
        self.tables: dict[str, Any] = {}
        self.variables: dict[str, tf.Variable] = {}
        self.shards: dict[str, ShardRows] = {}

    def export(self, folder: str) -> None:
        """Writes the model as it is now as a SavedModel."""
        nodes, paths = tf_save.save_and_return_nodes(self._model, folder, self._signatures)
        tables, variables = {}, {}
        for node in read_by_signatures(folder, nodes):
            if isinstance(node, SavedByObject):
                _add_table(node, tables)
            elif (variable := variable_of(node)) is not None:
                variables[key_of(paths[node])] = variable
        check_saved(folder, variables)
        self.tables, self.variables = tables, variables

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """{name of a table: (the part that this process has, number of parts)}."""
        return {name: part_of(table) or (0, 1) for name, table in self.tables.items()}

    def step(self) -> int:
        """The step of the model's optimizer; -1: not known."""
        iterations = getattr(getattr(self._model, "optimizer", None), "iterations", None)
        return -1 if iterations is None else int(iterations.numpy())

    def follow(self, follower: int) -> None:
        """Begins to follow the changes of all tables."""
        for table in self.tables.values():
            table_changes.follow_changes(table.resource_handle, follower)

    def snapshot(self, follower: int, step: int) -> bool:
        """Takes a snapshot of the changes of all tables; False: one is being saved."""
        by_device: dict[str, list[Any]] = {}
        for table in self.tables.values():
            by_device.setdefault(table.resource_handle.device, []).append(table)
        for tables in by_device.values():
            handles = [table.resource_handle for table in tables]
            parts = [part_of(table) or (0, 1) for table in tables]
            if not table_changes.snapshot_changes(
                handles, follower, step, parts, self._abandoned_seconds
            ):
                self.drop(follower)
                return False
        return True

    def copy_variables(self) -> dict[str, np.ndarray]:
        """{key: the value of now} of all variables."""
        return {key: variable.numpy() for key, variable in self.variables.items()}

    def read(self, follower: int) -> dict[str, Any]:
        """{name of a table: its Changes}, as NumPy values, since the snapshot."""
        read = {}
        for name, table in self.tables.items():
            changes = table_changes.read_changes(table.resource_handle, follower)
            read[name] = table_changes.Changes(*(tensor.numpy() for tensor in changes))
        return read

    def acknowledge(self, follower: int, marks: dict[str, np.ndarray]) -> None:
        """Counts later changes of each table from its mark."""
        for name, mark in marks.items():
            table_changes.follow_changes(self.tables[name].resource_handle, follower, mark)

    def drop(self, follower: int, unfollow: bool = False) -> None:
        """Frees changes that were not read; `unfollow`: follows no changes any more."""
        for table in self.tables.values():
            table_changes.drop_changes(table.resource_handle, follower, unfollow)


def read_by_signatures(folder, nodes):
    """The saved nodes that the signatures read, once each."""
    model = saved_model_pb2.SavedModel()
    with tf.io.gfile.GFile(os.path.join(folder, "saved_model.pb"), "rb") as file:
        model.ParseFromString(file.read())
    graph = model.meta_graphs[0].object_graph_def
    read: dict[int, None] = {}
    for name in _functions_of_signatures(graph):
        read.update(dict.fromkeys(graph.concrete_functions[name].bound_inputs))
    if not read:
        raise ValueError(
            "Publisher: expected a model with a signature that reads its variables, as "
            "tf.saved_model.save writes one; give signatures="
        )
    return [nodes[number] for number in read]


def _functions_of_signatures(graph):
    (signatures,) = [c.node_id for c in graph.nodes[0].children if c.local_name == "signatures"]
    for child in graph.nodes[signatures].children:
        node = graph.nodes[child.node_id]
        yield from node.function.concrete_functions
        if node.bare_concrete_function.concrete_function_name:
            yield node.bare_concrete_function.concrete_function_name


def variable_of(node: Any) -> tf.Variable | None:
    """The variable that a saved node is, or has as one of Keras 3; None: no, or without values."""
    if not isinstance(node, tf.Variable):
        node = getattr(node, "value", None)  # a method of a tf.Variable
    if isinstance(node, tf.Variable) and tf.TensorShape(node.shape).num_elements():
        return node
    return None


def key_of(path):
    return trackable_utils.object_path_to_string(path) + _VALUE


def _add_table(node, tables):
    table = node._original  # a SavedModel may be made of copies of resources
    if isinstance(table, RowsOfParts):
        raise ValueError(
            f"table '{table.name}': expected a table of one process that is no replica, to be "
            "published, got one of a MirroredStrategy"
        )
    if tables.setdefault(table.name, table) is not table:
        raise ValueError(
            f"table '{table.name}': expected one table of this name in a model that is published, "
            "got two; name them differently"
        )


def check_saved(folder, variables):
    """Refuses a variable that cannot be named, or whose value is not a number."""
    saved = tf.train.load_checkpoint(os.path.join(folder, "variables", "variables"))
    shapes = saved.get_variable_to_shape_map()
    for key, variable in variables.items():
        if shapes.get(key) != variable.shape.as_list():
            raise ValueError(
                f"variable '{variable.name}': expected its value in the SavedModel as '{key}', of "
                f"shape {variable.shape}, got {shapes.get(key)}"
            )
        if variable.dtype.base_dtype == tf.string:
            raise ValueError(
                f"variable '{variable.name}': expected numbers, to be published, got strings"
            )
