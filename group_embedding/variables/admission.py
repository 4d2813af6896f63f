"""Which keys get a row, and which lose it: options -> what the ops take that make a table, save it
and evict."""

from group_embedding.checkpoint.snapshots import Eviction
from group_embedding.ops import embedding_table


def admission_of(options):
    """The argument of `embedding_table.initialize` that KeyedOptions mean."""
    if options.expected_keys is None:
        return embedding_table.admission_by_counter(options.admit_after)
    return embedding_table.admission_by_bloom_filter(
        options.admit_after,
        options.expected_keys,
        options.early_share,
        options.counter_bits // 8,
    )


def eviction_of(options):
    """The Eviction that KeyedOptions mean."""
    if options.evict_after_steps is not None:
        return Eviction("global_step", steps_to_live=options.evict_after_steps)
    if options.evict_below_norm is not None:
        # The ops compare sum(row**2) / 2.
        return Eviction("l2_weight", l2_weight=options.evict_below_norm**2 / 2)
    return Eviction()
