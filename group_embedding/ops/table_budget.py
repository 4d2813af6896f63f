"""The ops on what a keyed table does to keep its budget, and on what it evicts by. Keys are int64,
bit for bit."""

from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils

from group_embedding.ops._library import library
from group_embedding.ops.table_keys import Export

auto_control_deps_utils.register_read_only_resource_op("GroupEmbedding>BudgetCounts")
for _name in ("BudgetCounts", "TakeEvicted", "SetScores", "SetTime"):
    tf.no_gradient(f"GroupEmbedding>{_name}")


class BudgetCounts(NamedTuple):
    """Counts of evictions, and of new keys without a place."""

    max_keys: Any
    evicted: Any
    without_place: Any
    missed: Any


def budget_counts(table):
    return BudgetCounts(*library().budget_counts(table=table))


def take_evicted(table, dtype, dim):
    """An Export of the keys that were evicted since the last call, in any order."""
    return Export(*library().take_evicted(table=table, dtype=dtype, dim=dim))


def set_scores(table, keys, scores):
    return library().set_scores(table=table, keys=keys, scores=scores)


def set_time(table, minute):
    return library().set_time(table=table, minute=minute)
