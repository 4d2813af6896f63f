"""The optimizers of TensorFlow are back after each test."""

import pytest
import tensorflow as tf


@pytest.fixture(autouse=True)
def same_optimizers():
    """`tf.keras.optimizers` of this process, for which `sok.init` puts the legacy ones."""
    kept = tf.keras.optimizers, tf.optimizers
    yield
    tf.keras.optimizers, tf.optimizers = kept
