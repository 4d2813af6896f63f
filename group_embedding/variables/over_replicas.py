"""Tables found by key over the replicas of a strategy: an EmbeddingVariable for each replica, with
the keys that its rank owns, and one variable that stands for all."""

import tensorflow as tf
from tensorflow.python.distribute.values import MirroredVariable

from group_embedding.checkpoint.by_object import RowsOfParts
from group_embedding.ops.table_keys import Export
from group_embedding.ranks import exchange
from group_embedding.ranks.sharding.replica_tables import check_in_scope, refuse_stock_updates
from group_embedding.variables.table_copy import no_array


def make_over_replicas(make):
    """Calls `make(exchange=, starts_like=)` for each rank of the job, and returns one variable.
    Keys have the same initial values on all ranks, those of the first.

    Raises:
        ValueError: it is called outside of the strategy's scope, or in `strategy.run`.
    """
    now = exchange.current()
    check_in_scope(now)
    parts = []
    for of_rank in now.of_this_process:
        parts.append(make(exchange=of_rank, starts_like=parts[0] if parts else None))
    return KeyedReplicas(now.strategy, parts)


class KeyedReplicas(MirroredVariable):
    """To its strategy a mirrored variable, whose copies are EmbeddingVariables. `tf_variable` finds
    that of a replica.

    Like one table it is saved, exported and given rows.
    """

    def __init__(self, strategy, parts):
        super().__init__(strategy, parts, tf.VariableAggregation.NONE)
        self._maybe_initialize_trackable()
        self.key_dtype = parts[0].key_dtype
        rows = [part.rows for part in parts]
        self.rows = self._track_trackable(rows[0] if len(rows) == 1 else RowsOfParts(rows), "table")
        if len(parts) > 1:
            refuse_stock_updates(self)

    def of_this_replica(self):
        """The EmbeddingVariable of the replica that asks; outside of `strategy.run`, itself."""
        context = tf.distribute.get_replica_context()
        is_replica = context is not None and context.strategy is self.distribute_strategy
        return self._get() if is_replica else self

    def _get_cross_replica(self):
        return self._primary  # to TensorFlow, which asks for what they have in common

    def __getattr__(self, name):
        is_of_part = not name.startswith("_") and hasattr(self._primary, name)
        if is_of_part and self.of_this_replica() is self:
            raise AttributeError(
                f"table '{self.name.partition(':')[0]}': expected insert or export outside of "
                f"strategy.run, as each replica has keys of its own, got {name}"
            )
        return super().__getattr__(name)

    def insert(self, keys, values, versions=None, freqs=None):
        """See `EmbeddingVariable.insert`."""
        for part in self._values:
            part.insert(keys, values, versions, freqs)

    def export(self):
        """See `EmbeddingVariable.export`: the keys of all replicas."""
        parts = zip(*(part.export() for part in self._values))
        joined = Export(*(tf.concat(part, axis=0) for part in parts))
        order = tf.argsort(joined.keys)
        return Export(*(tf.gather(part, order) for part in joined))

    def numpy(self):
        raise no_array(self.name.partition(":")[0])

    # Overrides of the placeholder of the tables, of shape [0, dim].
    def _serialize_to_tensors(self):
        return self._primary._serialize_to_tensors()

    def _restore_from_tensors(self, restored_tensors):
        return self._primary._restore_from_tensors(restored_tensors)
