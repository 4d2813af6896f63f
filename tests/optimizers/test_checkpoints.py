"""A run may switch between a stock optimizer and a wrapped one, and back."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from support.cases import optimizer_cases as cases

import group_embedding as ge

v1, keras = tf.compat.v1.train, tf.keras.optimizers
MAKERS = {
    "Adagrad": lambda: keras.Adagrad(0.1),
    "SGD": lambda: keras.SGD(0.02, momentum=0.9),
    "RMSprop": lambda: keras.RMSprop(0.01, momentum=0.5, centered=True),
    "Adam": lambda: keras.Adam(0.01, amsgrad=True),
    "v1_adam": lambda: v1.AdamOptimizer(0.01),
    "v1_ftrl": lambda: v1.FtrlOptimizer(0.1),
}
if hasattr(keras.Optimizer, "_deduplicate_sparse_grad"):
    MAKERS["legacy_adam"] = lambda: keras.legacy.Adam(0.01)
SWITCHES = [("stock", "wrapped"), ("wrapped", "stock")]
BATCHES = cases.make_batches(6, every_row=True)


def first(steps):
    return BATCHES._replace(
        ids=[ids[:steps] for ids in BATCHES.ids],
        weights=[w[:steps] for w in BATCHES.weights],
        targets=BATCHES.targets[:steps],
    )


def rest(steps):
    return BATCHES._replace(
        ids=[ids[steps:] for ids in BATCHES.ids],
        weights=[w[steps:] for w in BATCHES.weights],
        targets=BATCHES.targets[steps:],
    )


@functools.cache
def stock_values(name):
    return cases.train_function(MAKERS[name](), BATCHES)


def make(kind, maker):
    return ge.optimizers.wrap(maker()) if kind == "wrapped" else maker()


@pytest.mark.covering(1)
@pytest.mark.parametrize("before, after", SWITCHES)
@pytest.mark.parametrize("name", MAKERS)
def test_object_based_checkpoints(name, before, after, tmp_path):
    maker = MAKERS[name]
    # Given a run of three steps, saved
    variables, optimizer = cases.make_variables(), make(before, maker)
    cases.train_function(optimizer, first(3), variables)
    path = tf.train.Checkpoint(optimizer=optimizer, v=variables).save(str(tmp_path / "c"))
    # When another optimizer restores it and goes on
    variables, optimizer = cases.make_variables(), make(after, maker)
    status = tf.train.Checkpoint(optimizer=optimizer, v=variables).restore(path)
    values = cases.train_function(optimizer, rest(3), variables)
    # Then all of it was found, and six steps equal those of the stock optimizer
    status.assert_existing_objects_matched()
    cases.assert_close(values, stock_values(name))


@pytest.mark.covering(1)
@pytest.mark.parametrize("before, after", SWITCHES)
@pytest.mark.parametrize("use_resource", [False, True])
def test_name_based_checkpoints(before, after, use_resource, tmp_path):
    def run(kind, batches, restore=None):
        """Trains, and returns the values and the names in the checkpoint."""
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            start = [*cases.initial_values(), np.ones([cases.WIDTH], np.float32)]
            variables = [
                tf.compat.v1.get_variable(f"v{i}", initializer=s, use_resource=use_resource)
                for i, s in enumerate(start)
            ]
            place = tf.compat.v1.placeholder(tf.int32, [])
            optimizer = make(kind, MAKERS["v1_adam"])
            train = optimizer.minimize(cases.loss_of(variables, batches.at(place)))
            session.run(tf.compat.v1.global_variables_initializer())
            saver = tf.compat.v1.train.Saver()
            if restore:
                saver.restore(session, restore)
            for i in range(len(batches.targets)):
                session.run(train, {place: i})
            return session.run(variables), saver.save(session, str(tmp_path / kind))

    # Given a checkpoint of TensorFlow 1 after three steps
    expected, _ = run("stock", BATCHES)
    _, path = run(before, first(3))
    # When the other restores it
    values, after_path = run(after, rest(3), path)
    # Then it goes on as if nothing had been, and its own has the same names
    cases.assert_close(values, expected)
    assert tf.train.list_variables(path) == tf.train.list_variables(after_path)
