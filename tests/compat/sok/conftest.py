"""The ranks of tests/ranks/exchange, also for this folder."""

import pytest
import tensorflow as tf
from ranks.exchange.conftest import (  # noqa: F401
    pytest_runtest_teardown,
    start_ranks,
    three_ranks,
    two_ranks,
)


@pytest.fixture(autouse=True)
def same_optimizers():
    """`tf.keras.optimizers` of this process, for which `sok.init` puts the legacy ones."""
    kept = tf.keras.optimizers, tf.optimizers
    yield
    tf.keras.optimizers, tf.optimizers = kept
