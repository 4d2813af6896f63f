"""Fixtures of the tests of EmbeddingVariables."""

import numpy as np
import pytest
import tensorflow as tf
from variables import storages

import group_embedding as ge

# The files whose tests are made again for tables in other storages than DRAM.
_ON_EVERY_STORAGE = (
    "test_concurrency",
    "test_keys",
    "test_lookup",
    "test_reading",
    "test_training",
    "test_versions",
)


def pytest_generate_tests(metafunc):
    file = metafunc.module.__name__.rpartition(".")[2]
    if file in _ON_EVERY_STORAGE and "storage" in metafunc.fixturenames:
        metafunc.parametrize("storage", storages.ALL, indirect=True)


@pytest.fixture
def storage(request):
    """The StorageOption of a test's tables."""
    return getattr(request, "param", storages.DRAM)


@pytest.fixture
def make_table(storage):
    """Makes a table named "user" that starts as ones, or as the caller says."""

    def make(dim=2, initializer=None, name="user", rows=4, **arguments):
        options = {
            option: arguments.pop(option)
            for option in ("filter_option", "evict_option", "storage_option", "init_option")
            if option in arguments
        }
        options.setdefault("init_option", ge.InitializerOption(default_value_dim=rows))
        options.setdefault("storage_option", storage)
        return ge.get_embedding_variable(
            name,
            dim,
            initializer=tf.ones_initializer() if initializer is None else initializer,
            ev_option=ge.EmbeddingVariableOption(**options),
            **arguments,
        )

    return make


@pytest.fixture
def train():
    """Takes a step of SGD, by 1, on the sum of the rows of keys."""

    def take_step(table, keys, optimizer=None):
        optimizer = optimizer or ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))
        with tf.GradientTape() as tape:
            (rows,) = ge.group_embedding_lookup(
                [table], [tf.constant(np.array(keys, table.key_dtype.as_numpy_dtype))]
            )
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    return take_step


@pytest.fixture
def read():
    """The rows of keys, looked up."""

    def look_up(table, keys):
        keys = tf.constant(np.array(keys, table.key_dtype.as_numpy_dtype))
        return ge.group_embedding_lookup([table], [keys])[0].numpy()

    return look_up
