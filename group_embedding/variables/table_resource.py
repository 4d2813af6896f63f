"""The table behind an EmbeddingVariable as TensorFlow tracks it: made and initialized in graphs,
eagerly, and where a SavedModel is loaded."""

import tensorflow as tf
from tensorflow.python.eager import context

from group_embedding.checkpoint.by_object import SavedByObject
from group_embedding.ops import embedding_table


class TableResource(SavedByObject):
    """Owns the handle; initialized by whoever made it.

    Args:
        name: of the table, for messages; in a graph of TensorFlow 1 also what it is shared by.
        initialize: a function of a handle, and of whether a table that is initialized stays as it
            is, that makes an op.
        device: of the table.
        current_step: a function without arguments: see EmbeddingVariable.current_step.
        eviction: checkpoint.snapshots.Eviction, run when a checkpoint is saved.
        share: checkpoint.parts.Share of this rank, or None: the table is whole.
    """

    def __init__(self, name, initialize, device, current_step, eviction, share=None):
        super().__init__(device=device)
        self.share = share
        self._table_name = name
        self._make = initialize
        self.current_step = current_step
        self.eviction = eviction

    @property
    def name(self):
        return self._table_name

    def _create_resource(self):
        in_v1_graph = not tf.compat.v1.executing_eagerly_outside_functions()
        shared_name = f"{self._table_name}/table" if in_v1_graph else context.anonymous_name()
        return embedding_table.table_handle(self._table_name, shared_name)

    def initialize(self):
        """Makes it empty."""
        return self._make(self.resource_handle, if_needed=False)

    def _initialize(self):
        # Where a SavedModel is loaded, after the table was restored.
        return self._make(self.resource_handle, if_needed=True)

    initialize_if_needed = _initialize
