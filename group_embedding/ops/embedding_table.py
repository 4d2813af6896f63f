"""The ops that make a keyed table."""

import math

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import auto_control_deps_utils

from group_embedding.ops._library import library

auto_control_deps_utils.register_read_only_resource_op("GroupEmbedding>EmbeddingTableIsInitialized")


def table_handle(table_name, in_host_memory):
    """A new table and its handle.

    Eagerly, and in functions, the table lives as long as the handle. In a graph of TensorFlow 1,
    which is also what a SavedModel has beside its functions, the table lives as long as the
    session's resources, under a shared name that no other table of the graph has.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        shared_name = context.anonymous_name()
    else:
        graph = tf.compat.v1.get_default_graph()
        with graph.name_scope(None):
            shared_name = graph.unique_name(f"{table_name}/table")
    return library().embedding_table_handle_op(
        table_name=table_name, shared_name=shared_name, in_host_memory=in_host_memory
    )


def initialize(
    table,
    key_dtype,
    initial,
    no_row_value,
    slot_dtype,
    admission,
    storage,
    budget,
    if_needed=False,
):
    """Makes the table, empty.

    Args:
        key_dtype: of the keys, which the table's files name.
        initial: variables.initial_values.InitialValues.
        no_row_value: the constant that a key without a row reads.
        slot_dtype: of KeyedOptions.
        admission: a dict, of `variables.admission`.
        storage: a dict, of `variables.storage`.
        budget: a dict, of `variables.admission`.
        if_needed: a table that is initialized stays as it is.
    """
    return library().initialize_embedding_table(
        table=table,
        matrix=initial.matrix,
        key_dtype=key_dtype,
        dim=initial.matrix.shape[1],
        distribution=initial.distribution,
        a=initial.a,
        b=initial.b,
        seed=initial.seed,
        no_row_value=no_row_value,
        slot_dtype=slot_dtype or "",
        if_needed=if_needed,
        **admission,
        **storage,
        **budget,
    )


def admission_by_counter(min_count):
    return {"admission": "counter" if min_count > 0 else "all", "min_count": min_count}


def admission_by_bloom_filter(min_count, num_keys, false_positives, counter_bytes):
    """Counters and hashes as B. H. Bloom's filter needs them for `num_keys`."""
    num_counters = math.ceil(-num_keys * math.log(false_positives) / math.log(2) ** 2)
    return {
        "admission": "bloom",
        "min_count": min_count,
        "num_counters": num_counters,
        "num_hashes": max(1, round(num_counters / num_keys * math.log(2))),
        "counter_bytes": counter_bytes,
    }


def is_initialized(table):
    return library().embedding_table_is_initialized(table=table)
