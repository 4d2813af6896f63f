"""The table behind an EmbeddingVariable as TensorFlow tracks it: made and initialized in graphs,
eagerly, and where a SavedModel is loaded."""

import tensorflow as tf

from group_embedding.checkpoint.by_object import SavedByObject
from group_embedding.checkpoint.parts import part_of
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
        start: None, or what of `checkpoint.initial_checkpoint` it starts from.
        always_starts: whether it does so even where another checkpoint is restored.
    """

    def __init__(
        self,
        name,
        initialize,
        device,
        current_step,
        eviction,
        share=None,
        start=None,
        always_starts=False,
    ):
        super().__init__(device=device)
        self.share = share
        self._table_name = name
        self._make = initialize
        self.current_step = current_step
        self.eviction = eviction
        self.start = start
        self.always_starts = always_starts

    @property
    def name(self):
        return self._table_name

    def _create_resource(self):
        return embedding_table.table_handle(
            self._table_name, in_host_memory="GPU" not in self._resource_device
        )

    def initialize(self):
        """Makes it as it starts: empty, or with the rows of a checkpoint."""
        made = self._make(self.resource_handle, if_needed=False)
        part = part_of(self)
        if self.start is None or part is None:
            return made
        with tf.control_dependencies([made] if made is not None else []):
            return self.start.load(self.resource_handle, *part)

    def verify_start(self):
        """Fails if what it starts from is damaged, or of other rows than it can have."""
        return self.start.verify(self.resource_handle, *(part_of(self) or (0, 1)))

    def _initialize(self):
        # Where a SavedModel is loaded, after the table was restored.
        return self._make(self.resource_handle, if_needed=True)

    initialize_if_needed = _initialize
