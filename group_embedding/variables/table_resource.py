"""The table behind an EmbeddingVariable as TensorFlow tracks it: made and initialized in graphs,
eagerly, and where a SavedModel is loaded."""

import tensorflow as tf
from tensorflow.python.eager import context

from group_embedding.ops import embedding_table


class TableResource(tf.saved_model.experimental.TrackableResource):
    """Owns the handle; initialized by whoever made it.

    Args:
        name: of the table, for messages; in a graph of TensorFlow 1 also what it is shared by.
        initialize: a function of a handle that makes an op.
    """

    def __init__(self, name, initialize):
        super().__init__(device="CPU")
        self._table_name = name
        self._make = initialize

    def _create_resource(self):
        in_v1_graph = not tf.compat.v1.executing_eagerly_outside_functions()
        shared_name = f"{self._table_name}/table" if in_v1_graph else context.anonymous_name()
        return embedding_table.table_handle(self._table_name, shared_name)

    def _initialize(self):
        return self._make(self.resource_handle)
