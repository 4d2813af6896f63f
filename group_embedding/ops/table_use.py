"""The op that counts what a keyed table was asked for and did."""

from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils

from group_embedding.ops._library import library

auto_control_deps_utils.register_read_only_resource_op("GroupEmbedding>TableUse")
tf.no_gradient("GroupEmbedding>TableUse")


class TableUse(NamedTuple):
    """Counts since a table was made, as scalars; the op's documentation has each."""

    looked_up: Any
    in_first_tier: Any
    in_second_tier: Any
    in_third_tier: Any
    admitted: Any
    expired_by_steps: Any
    expired_by_minutes: Any
    expired_by_norm: Any
    wait_nanoseconds: Any
    sampled_ids: Any
    sampled_keys: Any
    hottest_share: Any
    oldest_steps: Any
    host_bytes: Any
    disk_bytes: Any


def table_use(table):
    return TableUse(*library().table_use(table=table))
