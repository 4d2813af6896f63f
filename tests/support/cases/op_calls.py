"""Calls of native ops with inputs that are right: tests change one of them at a time, and the
fuzzer (hostile_calls.py) any."""

import numpy as np
import pytest
import tensorflow as tf

from group_embedding.ops._library import library
from group_embedding.ops.group_update import HYPER_NAMES

Refused = (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError)
HUGE = 2**62
INT32_MAX = 2**31 - 1


@pytest.fixture(autouse=True)
def on_the_cpu():
    with tf.device("/CPU:0"):
        yield


def batch_of(row_splits, ids, weights=()):
    """A batch with any words: what GroupIds makes of right ones."""
    words = np.array([*row_splits, *ids], np.int64).view(np.float32)
    return tf.constant(np.concatenate([words, np.array(weights, np.float32)]))


# Two features of 2 and 1 samples.
SPLITS, IDS, SIZES = (0, 2, 3, 4), (1, 0, 2, 3), ((2, 3), (1, 1))
GROUP = {
    "table_of_feature": [0, 1],
    "combiners": ["sum", "mean"],
    "dims": [3, 2],
    "max_norms": [0.0, 0.0],
    "table_names": ["item", "user"],
    "feature_names": ["clicks", "users"],
}


def tables():
    return [tf.ones([5, 3]), tf.ones([4, 2])]


def look_up(batch=None, sizes=SIZES, num_outputs=2, **attrs):
    return library().group_lookup(
        tables=attrs.pop("tables", None) or tables(),
        batch=batch_of(SPLITS, IDS) if batch is None else batch,
        sizes=tf.constant(sizes, tf.int64),
        keyed_tables=attrs.pop("keyed_tables", []),
        num_outputs=num_outputs,
        **{"dtype": tf.float32, **GROUP, **attrs},
    )


def gradient(batch=None, sizes=SIZES, num_tables=2, **attrs):
    return library().group_lookup_grad(
        tables=tables(),
        batch=batch_of(SPLITS, IDS) if batch is None else batch,
        sizes=tf.constant(sizes, tf.int64),
        grads=[tf.ones([2, 3]), tf.ones([1, 2])],
        keyed_tables=[],
        num_tables=num_tables,
        **{"grad_features": [0, 1], **GROUP, **attrs},
    )


def update(batch=None, sizes=SIZES, variables=None, slots=None, **attrs):
    variables = variables or [tf.Variable(table) for table in tables()]
    slots = [tf.Variable(tf.zeros_like(v)) for v in variables] if slots is None else slots
    return library().group_update(
        tables=[v.handle for v in variables],
        slots=[s.handle for s in slots],
        batch=batch_of(SPLITS, IDS) if batch is None else batch,
        sizes=tf.constant(sizes, tf.int64),
        grads=[tf.ones([2, 3]), tf.ones([1, 2])],
        hyper=tf.zeros([len(HYPER_NAMES)]),
        keyed_tables=[],
        **{
            "rule": "adagrad",
            "rule_slots": [0],
            "grad_features": [0, 1],
            "updated_tables": [0, 1],
            **GROUP,
            **attrs,
        },
    )


def select(batch=None, sizes=SIZES):
    return library().select_samples(
        batch=batch_of(SPLITS, IDS) if batch is None else batch,
        sizes=tf.constant(sizes, tf.int64),
        samples=[tf.constant([1, 1], tf.int64)],
        features=[0],
    )


def route(batch=None, sizes=SIZES, **attrs):
    return library().route_ids(
        batch=batch_of(SPLITS, IDS) if batch is None else batch,
        sizes=tf.constant(sizes, tf.int64),
        **{
            "num_ranks": 2,
            "num_rows": [5, 4],
            "placements": ["mod", "mod"],
            "placement_ranks": [0, 0],
            "table_of_feature": [0, 1],
            "combiners": ["sum", "mean"],
            "description": "",
            "of_host": [],
            **attrs,
        },
    )


def pack(counts, rows=((2, 3), (1, 2)), indices=(), wire=(tf.float32, tf.float32)):
    return library().pack_rows(
        rows=[tf.ones(shape) for shape in rows],
        indices=[tf.constant(i, tf.int64) for i in indices],
        counts=tf.constant(counts, tf.int64),
        wire=list(wire),
    )


def unpack(counts, dims, packed=None, num_indices=2, wire=(tf.float32, tf.float32)):
    return library().unpack_rows(
        packed=tf.zeros([16]) if packed is None else packed,
        counts=tf.constant(counts, tf.int64),
        dtypes=[tf.float32, tf.float32],
        num_indices=num_indices,
        wire=list(wire),
        dims=dims,
    )


def read_requests(messages, splits, **attrs):
    return library().read_requests(
        messages=messages,
        splits=splits,
        **{
            "num_groups": 1,
            "group_of_table": [0, 0],
            "num_rows": [5, 4],
            "table_of_feature": [0, 1],
            "table_names": ["item", "user"],
            "feature_names": ["clicks", "users"],
            "description": "",
            **attrs,
        },
    )
