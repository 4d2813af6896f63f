"""Tables of a layer as variables of their own: shared, partly frozen, saved with and without it."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras
from group_embedding.lookups.lookup_table import tf_variable

ROWS, SAMPLES, RATE = 60, 20, 0.25
DIMS = {"first": 2, "second": 3, "third": 2}
STEPS = 3


def start_of(name):
    rng = np.random.default_rng(len(name) + DIMS[name])
    return rng.normal(size=[ROWS, DIMS[name]]).astype(np.float32)


def batches(first, last):
    """Batches of ids, of which none is in a table twice, and of labels."""
    for step in range(first, last):
        rng = np.random.default_rng(step)
        ids = {name: tf.constant(rng.permutation(ROWS)[:SAMPLES]) for name in DIMS}
        yield ids, tf.constant(rng.normal(size=[SAMPLES, 1]), tf.float32)


class OfVariables:
    """Variables that stock ops look up one by one, and a stock optimizer."""

    def __init__(self):
        self.make(keras.optimizers.Adagrad(0.1))
        self.optimizer.build(self.variables())

    def make(self, optimizer):
        self.tables = {name: tf.Variable(start_of(name), name=name) for name in DIMS}
        self.kernel = tf.Variable(np.linspace([-1], [1], sum(DIMS.values()), dtype=np.float32))
        self.optimizer = optimizer

    def variables(self):
        return [*self.tables.values(), self.kernel]

    def look_up(self, ids):
        return tf.concat([tf.gather(self.tables[name], ids[name]) for name in DIMS], axis=1)

    def step(self, ids, labels):
        variables = self.variables()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.look_up(ids) @ self.kernel - labels) ** 2)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    def checkpoint(self):
        return tf.train.Checkpoint(optimizer=self.optimizer, kernel=self.kernel, **self.tables)


class OfLayer(OfVariables):
    """Tables of a `GroupEmbedding` layer, and a wrapped optimizer."""

    def make(self, optimizer):
        super().make(ge.optimizers.wrap(optimizer))
        configs = [
            ge.TableConfig(name, ROWS, dim, initializer=keras.initializers.Constant(start_of(name)))
            for name, dim in DIMS.items()
        ]
        features = [ge.FeatureConfig(config.name, config) for config in configs]
        self.layer = ge.layers.GroupEmbedding(features, concat=True)
        self.layer.build()
        self.tables = {name: tf_variable(table) for name, table in self.layer.tables.items()}

    def look_up(self, ids):
        return self.layer(ids)


def train(trainer, first, last, decorate=tf.function):
    step = decorate(trainer.step)
    return [step(*batch).numpy() for batch in batches(first, last)]


DECORATORS = {
    "function": tf.function,
    "compiled": ge.training.make_step,
    "eager": lambda step: step,
}


@pytest.mark.parametrize("way", DECORATORS)
@pytest.mark.parametrize("saved_by, restored_by", [(OfVariables, OfLayer), (OfLayer, OfVariables)])
def test_checkpoints_of_variables_and_of_a_layer_are_alike(saved_by, restored_by, way, tmp_path):
    # Given a checkpoint of variables of a stock program, or of the tables of a layer, and slots
    expected = train(OfVariables(), 0, 2 * STEPS)
    saved = saved_by()
    train(saved, 0, STEPS, DECORATORS[way] if saved_by is OfLayer else tf.function)
    path = saved.checkpoint().write(str(tmp_path / "tables"))

    # When the other one, which has trained on other batches, reads it
    restored = restored_by()
    step = (DECORATORS[way] if restored_by is OfLayer else tf.function)(restored.step)
    for batch in batches(7, 9):
        step(*batch)
    restored.checkpoint().read(path).assert_existing_objects_matched()

    # Then its steps, traced before, go on as the stock program does
    found = [step(*batch).numpy() for batch in batches(STEPS, 2 * STEPS)]
    np.testing.assert_allclose(found, expected[STEPS:], rtol=1e-5)


def constant_table(name, dim, value, **options):
    return ge.TableConfig(name, dim=dim, initializer=keras.initializers.Constant(value), **options)


def make_two_layers(kind):
    """Layers of three tables each, of which they share one, and one of each is frozen."""
    num_rows = ROWS if kind == "rows" else None
    shared = constant_table("shared", 2, 1.0, num_rows=num_rows)
    layers = []
    for layer in ("one", "other"):
        own = constant_table(f"own_of_{layer}", 3, 2.0, num_rows=num_rows)
        frozen = constant_table(f"frozen_of_{layer}", 2, 3.0, num_rows=num_rows, trainable=False)
        features = [ge.FeatureConfig(table.name, table) for table in (frozen, shared, own)]
        layers.append(ge.layers.GroupEmbedding(features, name=layer))
        layers[-1].build()
    return layers


@pytest.mark.parametrize("kind", ["rows", "keys"])
@pytest.mark.parametrize("way", DECORATORS)
def test_layers_of_one_function_see_what_others_trained(kind, way):
    # Given two layers that share a table, each with one that is frozen
    one, other = make_two_layers(kind)
    optimizer = ge.optimizers.wrap(keras.optimizers.SGD(RATE))
    variables = {id(v): v for layer in (one, other) for v in layer.trainable_variables}
    assert len(variables) == 3
    optimizer.build(list(variables.values()))
    ids = tf.range(ROWS)

    def look_up(layer):
        return list(layer(dict.fromkeys(layer.tables, ids)).values())

    def train(layer):  # the gradient of a row is the row
        trained = layer.trainable_variables
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(v * v) for v in look_up(layer)) / 2
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return loss

    def train_both():
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(v * v) for v in [*look_up(one), *look_up(other)]) / 2
        trained = list(variables.values())
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return loss

    train_one, train_other, train_both = map(
        DECORATORS[way] if way == "compiled" else lambda step: step,
        (lambda: train(one), lambda: train(other), train_both),
    )

    def program():
        found = [look_up(other)]
        for step in (train_one, train_other, train_both):
            step()
            found += [look_up(one), look_up(other)]
        return found

    # When one is trained, then the other, and then both at once, among lookups of both
    found = (program if way == "eager" else tf.function(program))()

    # Then each lookup sees the updates before it, and frozen tables are what they were
    left = 1 - RATE
    expected = [[3, 1, 2]]
    expected += [[3, left, 2 * left], [3, left, 2]]
    expected += [[3, left**2, 2 * left], [3, left**2, 2 * left]]
    both = left**2 * (1 - 2 * RATE)  # it has two gradients
    expected += [[3, both, 2 * left**2]] * 2
    for of_lookup, values in zip(found, expected, strict=True):
        for vectors, value in zip(of_lookup, values, strict=True):
            np.testing.assert_allclose(vectors, np.full(vectors.shape, value), rtol=1e-6)


@pytest.mark.parametrize("base", [keras.Model, ge.training.Model])
def test_fit_leaves_the_frozen_tables_of_a_group_alone(base):
    # Given a model of one layer with trained and frozen tables, by row and by key
    class Sum(base):
        def __init__(self):
            super().__init__()
            tables = [
                constant_table(f"{kind}_{trainable}", dim, 1.0, num_rows=rows, trainable=trainable)
                for kind, rows, dim in (("rows", ROWS, 2), ("keys", None, 3))
                for trainable in (True, False)
            ]
            features = [ge.FeatureConfig(table.name, table) for table in tables]
            self.layer = ge.layers.GroupEmbedding(features, concat=True)

        def call(self, inputs):
            return tf.reduce_sum(self.layer(inputs), 1, keepdims=True)

    model = Sum()
    model.compile(ge.optimizers.wrap(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
    ids = {
        f"{kind}_{trained}": np.arange(ROWS)
        for kind in ("rows", "keys")
        for trained in (True, False)
    }

    # When it is fitted
    model.fit(ids, np.zeros([ROWS, 1], np.float32), epochs=2, batch_size=20, verbose=0)

    # Then the trained ones alone have changed
    vectors = model.layer({name: tf.constant(of) for name, of in ids.items()}).numpy()
    of_rows, frozen_rows, of_keys, frozen_keys = np.split(vectors, [2, 4, 7], axis=1)
    assert (of_rows < 0.9).all() and (of_keys < 0.9).all()
    assert (frozen_rows == 1).all() and (frozen_keys == 1).all()
