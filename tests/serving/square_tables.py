"""A model whose rows say what their keys are, below whose memory is Redis."""

import time

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.serving import InferenceSession

COUNT = 3000


class Squares(tf.Module):
    """Two tables by key: row k of the one has k in all columns, of the other k * k. Other keys read
    -1."""

    def __init__(self, count=COUNT):
        option = ge.EmbeddingVariableOption(
            init_option=ge.InitializerOption(initializer=tf.keras.initializers.Constant(-1.0))
        )
        keys = np.arange(count)
        self.same = ge.get_embedding_variable("redis_same", 4, ev_option=option)
        self.square = ge.get_embedding_variable("redis_square", 9, ev_option=option)
        self.same.insert(keys, np.repeat(keys[:, None], 4, 1).astype(np.float32))
        self.square.insert(keys, np.repeat(keys[:, None] ** 2, 9, 1).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="keys")])
    def serve(self, keys):
        same, square = ge.group_embedding_lookup([self.same, self.square], [keys] * 2)
        return {"same": same, "square": square}


def tiered(folder, where, more=""):
    """A session whose memory has few rows: almost every key is asked for below."""
    return InferenceSession(folder, tiers=f"memory=1kB,redis={where}{more}")


def some_keys(seed, count=300):
    return np.random.default_rng(seed).integers(-20, COUNT + 20, count)


def assert_answers(session, keys, count=COUNT, **options):
    """Each key reads its own row."""
    found = session.predict({"keys": np.asarray(keys)}, **options)
    expected = np.where((keys >= 0) & (keys < count), keys, -1).astype(np.float32)
    np.testing.assert_array_equal(found["same"][:, 0], expected)
    squared = np.where(expected < 0, -1, expected * expected)
    np.testing.assert_array_equal(found["square"], np.repeat(squared[:, None], 9, 1))


def assert_fails(session, address, *texts):
    """A request for keys that are not in memory is an error with these texts, within seconds."""
    start = time.monotonic()
    with pytest.raises(tf.errors.UnavailableError) as raised:
        session.predict({"keys": some_keys(99)})
    for text in ("table 'redis_s", f"tier redis={address}: ", *texts):
        assert text in str(raised.value)
    assert time.monotonic() - start < 10
