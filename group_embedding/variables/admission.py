"""Which keys get a row, and which lose it: options -> what the ops take that make a table, save it
and evict."""

import tensorflow as tf

from group_embedding.checkpoint.snapshots import Eviction
from group_embedding.ops import embedding_table
from group_embedding.variables.options import CBFFilter, GlobalStepEvict


def admission_of(filter_option):
    """Converts a filter_option into the argument of `embedding_table.initialize`; None: every key
    gets a row."""
    if filter_option is None:
        return embedding_table.admission_by_counter(0)
    if not isinstance(filter_option, CBFFilter):
        return embedding_table.admission_by_counter(filter_option.filter_freq)
    return embedding_table.admission_by_bloom_filter(
        filter_option.filter_freq,
        filter_option.max_element_size,
        filter_option.false_positive_probability,
        tf.as_dtype(filter_option.counter_type).size,
    )


def eviction_of(evict_option):
    """The Eviction that an evict_option means; None: no key loses its row."""
    if evict_option is None:
        return Eviction()
    if isinstance(evict_option, GlobalStepEvict):
        if evict_option.steps_to_live is None:
            return Eviction()
        return Eviction("global_step", steps_to_live=evict_option.steps_to_live)
    if evict_option.l2_weight_threshold < 0:
        return Eviction()
    return Eviction("l2_weight", l2_weight=evict_option.l2_weight_threshold)
