"""The model that ranks train and publish: its base, and what of it this rank has."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model import save as tf_save

from group_embedding.checkpoint import SavedByObject, part_of
from group_embedding.ranks.sharding import sharded_table
from group_embedding.serving.publish.rank_agreement import RankAgreement, first_rank_exports
from group_embedding.serving.publish.shard_rows import ShardRows
from group_embedding.serving.publish.trained_model import (
    TrainedModel,
    check_saved,
    key_of,
    read_by_signatures,
    variable_of,
)


class ModelOfRanks(TrainedModel):
    """A Keras model or `tf.Module` whose tables are spread over ranks.

    Args:
        model: The model as this rank trains it.
        build: Makes the model anew; returns it, or (model, signatures).
        exchange: The exchange of the ranks.
        abandoned_seconds: As of TrainedModel.

    Attributes:
        tables: The keyed tables of which this rank has rows, by name.
        variables: On rank 0 the variables that are whole, by key; on other ranks none.
    """

    def __init__(
        self, model: Any, build: Callable[[], Any], exchange: Any, abandoned_seconds: float
    ) -> None:
        super().__init__(model, None, abandoned_seconds)
        self._build = build
        self._rank = exchange.rank
        self._agreement = RankAgreement(exchange, count=1)

    def export(self, folder: str) -> None:
        """Writes the model as it is now as a SavedModel. Every rank calls it, with one folder.

        Raises:
            RuntimeError: On other ranks, where rank 0 could not export.
        """
        name = "model" if self._rank == 0 else f"rank-{self._rank}"
        prefix = os.path.join(os.path.dirname(folder), "checkpoint", name)
        os.makedirs(os.path.dirname(prefix), exist_ok=True)
        tf.train.Checkpoint(model=self._model).write(prefix)
        self._find(first_rank_exports(self._agreement, lambda: self._export_whole(prefix, folder)))

    def _export_whole(self, prefix, folder):
        """Makes the model whole, restores and exports it; returns the paths of its objects."""
        built = self._build()
        model, signatures = built if isinstance(built, tuple) else (built, None)
        restored = tf.train.Checkpoint(model=model).read(prefix)
        restored.assert_existing_objects_matched()
        nodes, paths = tf_save.save_and_return_nodes(model, folder, signatures)
        tables, variables, saved = {}, {}, {}
        for node in read_by_signatures(folder, nodes):
            names = [reference.name for reference in paths[node]]
            if isinstance(node, SavedByObject):
                tables[node._original.name] = names
            elif (variable := variable_of(node)) is not None:
                variables[key_of(paths[node])], saved[key_of(paths[node])] = names, variable
        check_saved(folder, saved)
        return {"tables": tables, "variables": variables}

    def _find(self, told):
        """Finds what the base has in this rank's model."""
        self.tables, self.variables, self.shards = {}, {}, {}
        for name, path in told["tables"].items():
            table = getattr(found := self._at(path), "_original", found)
            if table.name != name:
                raise ValueError(
                    f"Publisher: expected build() to make table '{table.name}', got '{name}'; give "
                    "tables the names that the trainer's have"
                )
            if part_of(table) is not None:
                self.tables[name] = table
        for key, path in told["variables"].items():
            variable = self._at(path)
            variable = variable if isinstance(variable, tf.Variable) else variable.value
            shard = sharded_table(variable)
            if shard is not None:
                self.shards[key] = ShardRows(key, shard, shard.variable.numpy)
            elif self._rank == 0:
                self.variables[key] = variable

    def _at(self, path):
        found = self._model
        for name in path:
            child = found._lookup_dependency(name)
            if child is None:
                child = found._trackable_children().get(name)
            if child is None:
                raise ValueError(
                    f"Publisher: expected build() to make the trainer's model, got one with "
                    f"'{'/'.join(path)}', of which the trainer's lacks '{name}'"
                )
            found = child
        return found
