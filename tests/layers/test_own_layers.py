"""EmbeddingVariables in Keras layers of a user's own, and checkpoints of such models."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras

KEYS = np.random.default_rng(0).integers(0, 50, (64, 2))
LABELS = np.random.default_rng(1).uniform(size=(64, 1)).astype(np.float32)


class Rows(keras.layers.Layer):
    def build(self, input_shape):
        table = ge.get_embedding_variable("rows", 4, initializer=tf.ones_initializer())
        self.table = ge.layers.as_keras_variable(table)
        self.supports_jit = False  # XLA cannot compile the lookup

    def call(self, keys):
        (rows,) = ge.group_embedding_lookup([self.table], [tf.cast(keys, tf.int64)])
        return tf.reshape(rows, [-1, 8])

    def compute_output_shape(self, input_shape):
        return (input_shape[0], 8)


def make_model(optimizer="Adam"):
    model = keras.Sequential(
        [
            keras.Input([2], dtype="int64"),
            Rows(),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    stock = getattr(keras.optimizers, optimizer)(0.1)
    model.compile(ge.optimizers.wrap(stock), "mse")
    return model


def table_of(model):
    variable = model.layers[0].table
    return getattr(variable, "_value", variable)


def fit(model):
    model.fit(KEYS, LABELS, batch_size=16, shuffle=False, verbose=0)
    export = table_of(model).export()
    return export.keys.numpy(), export.values.numpy()


def test_a_layer_tracks_and_trains_its_table():
    model = make_model()

    keys, values = fit(model)

    assert any(variable is model.layers[0].table for variable in model.trainable_variables)
    np.testing.assert_array_equal(keys, np.unique(KEYS))
    assert (values != 1).any()


@pytest.mark.parametrize("optimizer", ["Adam", "Adagrad"])
def test_slots_are_restored_into_another_model_of_the_process(optimizer, tmp_path):
    # Given a model that was trained, and saved with its optimizer
    first = make_model(optimizer)
    fit(first)
    saved = tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(f"{tmp_path}/first")
    expected = fit(first)
    # When another one is restored from that, before or after it was trained
    for trained in (False, True):
        second = make_model(optimizer)
        if trained:
            fit(second)
        else:
            second.optimizer.build(second.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=second, optimizer=second.optimizer)
        checkpoint.read(saved).assert_existing_objects_matched()
        # Then it goes on as the first did
        for found, value in zip(fit(second), expected):
            np.testing.assert_array_equal(found, value)
