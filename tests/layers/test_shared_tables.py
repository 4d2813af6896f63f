"""Layers that are given one `TableConfig` share its table: two towers, one table of items."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras
from group_embedding.lookups.lookup_table import variable_of_all

ITEMS = np.random.default_rng(1).integers(0, 20, (16, 3))
USERS = np.random.default_rng(2).integers(0, 9, (16, 1))
INPUTS = {"history": ITEMS, "user": USERS, "item": ITEMS[:, :1]}
LABELS = np.random.default_rng(4).uniform(size=(16, 1)).astype(np.float32)


@keras.utils.register_keras_serializable("test_shared_tables")
class Towers(keras.Model):
    """Two functional models, each of which can be called and exported alone."""

    def __init__(self, query, candidate, **kwargs):
        super().__init__(**kwargs)
        self.query, self.candidate = query, candidate

    def call(self, inputs):
        query = self.query({"history": inputs["history"], "user": inputs["user"]})
        candidate = self.candidate({"item": inputs["item"]})
        return tf.reduce_sum(query * candidate, axis=1, keepdims=True)

    def get_config(self):
        towers = {"query": self.query, "candidate": self.candidate}
        serialize = keras.utils.serialize_keras_object
        return {**super().get_config(), **{n: serialize(t) for n, t in towers.items()}}

    @classmethod
    def from_config(cls, config):
        deserialize = keras.utils.deserialize_keras_object
        towers = {name: deserialize(config.pop(name)) for name in ("query", "candidate")}
        return cls(**towers, **config)


def tower(name, widths, tables):
    inputs = {x: keras.Input((width,), dtype="int64", name=x) for x, width in widths.items()}
    features = [ge.FeatureConfig(x, table) for x, table in zip(widths, tables)]
    vectors = ge.layers.GroupEmbedding(features, concat=True, name=f"{name}_embedding")(inputs)
    return keras.Model(inputs, keras.layers.Dense(4, name=f"{name}_dense")(vectors), name=name)


def make_towers(num_rows):
    items = ge.TableConfig("items", num_rows, 5)
    query = tower("query", {"history": 3, "user": 1}, [items, ge.TableConfig("users", num_rows, 3)])
    towers = Towers(query, tower("candidate", {"item": 1}, [items]))
    towers(INPUTS)
    towers.compile(ge.optimizers.wrap(keras.optimizers.Adam(0.05)), "mse")
    return towers


def tables_of(towers):
    layers = towers.query.get_layer("query_embedding"), towers.candidate.layers[1]
    return [variable_of_all(layer.tables["items"]) for layer in layers]


def fit(towers):
    towers.fit(INPUTS, LABELS, batch_size=8, shuffle=False, verbose=0)


@pytest.fixture(params=[None, 40], ids=["keys", "rows"])
def towers(request):
    return make_towers(request.param)


def test_both_towers_have_the_table_and_the_model_has_it_once(towers):
    ours, theirs = tables_of(towers)

    assert ours is theirs
    # two tables and two weights of each dense layer
    assert len(towers.trainable_variables) == 6


def test_what_one_tower_trains_the_other_one_reads(towers):
    # Given one tower, with an optimizer of its own
    candidate = towers.candidate
    candidate.compile(ge.optimizers.wrap(keras.optimizers.SGD(0.1)), "mse")
    before = towers.query(INPUTS).numpy()
    # When it is trained
    candidate.fit({"item": INPUTS["item"]}, np.ones([16, 4], np.float32), verbose=0)
    # Then the other one reads other rows
    assert (towers.query(INPUTS).numpy() != before).any()


def test_each_tower_is_exported_alone(towers, tmp_path):
    fit(towers)
    for name, inputs in (("query", ("history", "user")), ("candidate", ("item",))):
        # Given one trained tower, exported
        model = getattr(towers, name)
        given = {x: tf.constant(INPUTS[x]) for x in inputs}
        model.export(str(tmp_path / name))
        # When it is served
        loaded = tf.saved_model.load(str(tmp_path / name))
        (served,) = loaded.signatures["serving_default"](**given).values()
        # Then it answers as it did
        np.testing.assert_allclose(served, model(given), rtol=1e-6)


def test_a_keras_file_of_both_shares_the_table_again(towers, tmp_path):
    # Given both towers, trained, saved, and trained further
    fit(towers)
    towers.save(tmp_path / "towers.keras")
    fit(towers)
    # When they are loaded twice, and the first of them is trained further
    loaded, again = (keras.models.load_model(tmp_path / "towers.keras") for _ in range(2))
    ge.optimizers.wrap(loaded.optimizer)
    untouched = again(INPUTS).numpy()
    fit(loaded)
    # Then its towers share a table, which the others do not have, and end as the first did
    ours, theirs = tables_of(loaded)
    assert ours is theirs and ours is not tables_of(again)[0]
    np.testing.assert_array_equal(loaded(INPUTS), towers(INPUTS))
    np.testing.assert_array_equal(again(INPUTS), untouched)


def test_a_checkpoint_of_both_has_the_table_once(towers, tmp_path):
    # Given both towers, trained, and saved with their optimizer
    fit(towers)
    path = tf.train.Checkpoint(model=towers, optimizer=towers.optimizer).write(f"{tmp_path}/saved")
    fit(towers)
    # When others are restored, and trained further
    is_keyed = hasattr(tables_of(towers)[0], "table_handle")
    others = make_towers(None if is_keyed else 40)
    fit(others)
    tf.train.Checkpoint(model=others, optimizer=others.optimizer).read(path)
    fit(others)
    # Then they end as the first did
    np.testing.assert_array_equal(others(INPUTS), towers(INPUTS))


def test_equal_configs_are_two_tables():
    items = ge.TableConfig("items", None, 5)
    layers = [
        ge.layers.GroupEmbedding([ge.FeatureConfig("item", config)])
        for config in (items, dataclasses.replace(items))
    ]
    for layer in layers:
        layer.build()

    first, second = (variable_of_all(layer.tables["items"]) for layer in layers)
    assert first is not second
