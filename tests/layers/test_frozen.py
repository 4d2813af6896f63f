"""Layers that are frozen and thawed: keyed tables of a frozen layer do not change."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding.keras_compat import keras
from group_embedding.layers.layer_tables import lookup_param

DIM, NUM_ROWS = 4, 20
LABELS = np.ones([8, 1], np.float32)


def batch(first):
    ids = np.arange(first, first + 8)
    return {"user": ids, "item": 3 * ids, "shop": ids % NUM_ROWS}


class Model(keras.Model):
    """Two keyed tables and one by row under one layer."""

    def __init__(self, **of_layer):
        super().__init__()
        counted = ge.EmbeddingVariableOption(filter_option=ge.CounterFilter(filter_freq=2))
        self.embeddings = ge.layers.GroupEmbedding(
            [
                ge.FeatureConfig("user", ge.TableConfig("users", None, DIM)),
                ge.FeatureConfig("item", ge.TableConfig("items", None, DIM, ev_option=counted)),
                ge.FeatureConfig("shop", ge.TableConfig("shops", NUM_ROWS, DIM)),
            ],
            concat=True,
            **of_layer,
        )
        self.head = keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(self.embeddings(inputs))

    def recompile(self):
        self.compile(ge.optimizers.wrap(keras.optimizers.Adagrad(0.1)), "mse")
        return self

    def state(self):
        """The state of each key, by keyed table, and the rows of the other table."""
        keys = tf.range(4000, dtype=tf.int64)
        state = []
        for name in ("users", "items"):
            table = lookup_param(self.embeddings.tables[name])
            state += [part.numpy().tolist() for part in table.export()]
            state += [table.get_frequency(keys).numpy().tolist()]
        return state, tf.convert_to_tensor(self.embeddings.tables["shops"]).numpy().tolist()


def train_on_batch(model, first):
    model.recompile().train_on_batch(batch(first), LABELS)


def fit(model, first):
    model.recompile().fit(batch(first), LABELS, batch_size=4, verbose=0)


def eager_loop(model, first):
    model.recompile()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(batch(first)) - LABELS) ** 2)
    variables = model.trainable_variables
    model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))


@pytest.mark.parametrize("train", [train_on_batch, fit, eager_loop])
def test_a_frozen_layer_does_not_change_and_goes_on(train):
    # Given a model that was trained
    model = Model()
    train(model, 0)
    before, head = model.state(), model.head.get_weights()
    # When the layer is frozen, and known and unknown keys train the rest
    model.embeddings.trainable = False
    for first in (4, 500):
        train(model, first)
    # Then no table has changed, and the rest has
    assert model.state() == before
    assert not np.array_equal(head[0], model.head.get_weights()[0])
    # When it is thawed, then new keys get rows again
    model.embeddings.trainable = True
    train(model, 1000)
    users = lookup_param(model.embeddings.tables["users"])
    assert (
        users.get_frequency(tf.range(996, 1004, dtype=tf.int64)).numpy().tolist()
        == [0] * 4 + [1] * 4
    )


@pytest.mark.parametrize(
    "freeze", by_day(["the model", "before it is built"], ["before it is built"])
)
def test_ways_to_freeze(freeze):
    # Given a model whose layer never was trainable, or which is frozen but for its head
    model = Model(trainable=freeze == "the model")
    model.recompile()
    if freeze == "the model":
        model(batch(0))
        model.trainable = False
        model.head.trainable = True
    # When it is trained
    train_on_batch(model, 0)
    # Then no key has a row or is counted
    keys = tf.constant(batch(0)["user"], tf.int64)
    users = lookup_param(model.embeddings.tables["users"])
    assert not users.get_frequency(keys).numpy().any() and int(users.total_count()) == 0


def test_a_frozen_table_beside_one_that_is_trained():
    # Given a layer of which one table is not trainable
    layer = ge.layers.GroupEmbedding(
        [
            ge.FeatureConfig("user", ge.TableConfig("users", None, DIM, trainable=False)),
            ge.FeatureConfig("item", ge.TableConfig("items", None, DIM)),
        ],
        concat=True,
    )
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    model.compile(ge.optimizers.wrap(keras.optimizers.Adagrad(0.1)), "mse")
    # When it is trained
    model.train_on_batch(batch(0), LABELS)
    # Then the other one alone has keys
    counts = {name: int(lookup_param(table).total_count()) for name, table in layer.tables.items()}
    assert counts == {"users": 0, "items": 8}


def test_a_layer_of_ones_own_is_frozen_as_well():
    # Given two layers that track keyed tables as attributes
    class Keys(keras.layers.Layer):
        def __init__(self, name):
            super().__init__(name=name)
            table = ge.get_embedding_variable(f"{name}_table", DIM)
            self.table = ge.layers.as_keras_variable(table)

        def call(self, keys):
            return ge.group_embedding_lookup([self.table], [keys])[0]

    frozen, trained = Keys("frozen"), Keys("trained")
    keys = keras.Input([], dtype="int64")
    model = keras.Model(keys, keras.layers.Dense(1)(frozen(keys) + trained(keys)))
    frozen.trainable = False
    optimizer = ge.optimizers.wrap(keras.optimizers.Adagrad(0.1))
    model.compile(optimizer, "mse", jit_compile=False)  # XLA compiles no lookup of one's own layer
    # When the model is trained
    model.train_on_batch(np.arange(8), LABELS)
    # Then the frozen one has no key
    assert [int(layer.table.total_count()) for layer in (frozen, trained)] == [0, 8]
