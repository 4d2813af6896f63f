"""Optimizers without a stock counterpart, on variables that are no tables, and as Keras and the
package know them. test_lazy_rules.py has their tables."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.oracles.rules import OWN

import group_embedding as ge
from group_embedding.optimizers import (
    OPTIMIZER_NAMES,
    arguments_of,
    make_named,
    num_slots,
    registry,
)

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/optimizers.md"
GRADIENT = np.array([[1.0, 3.0], [0.0, 2.0]], np.float32)
START = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def make(name, *arguments, **more):
    return getattr(ge.optimizers, name)(*arguments, **more)


def test_each_is_public_tested_and_in_the_guide():
    public = {make.__name__: name for name, make in registry.OWN.items()}
    assert public.keys() == OWN.keys() and public.keys() <= set(ge.optimizers.__all__)
    assert {name: own.rule for name, own in OWN.items()} == public
    guide = GUIDE.read_text()
    named = [*registry.STOCK_KERAS, *public, *(v1[: -len("Optimizer")] for v1 in registry.STOCK_V1)]
    assert [name for name in named if name not in guide] == []


@pytest.mark.parametrize("name", OPTIMIZER_NAMES)
def test_each_is_made_by_its_name(name):
    # Given an optimizer made by the name that configs have
    optimizer = make_named(name, learning_rate=0.1)
    table = tf.Variable(tf.ones([4, 2]))
    # When it trains a row
    optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([2])), table)])
    # Then no other row moves
    np.testing.assert_array_equal(np.any(table.numpy() != 1, axis=1), [False, False, True, False])
    assert isinstance(optimizer, ge.optimizers.WRAPPED)
    assert "learning_rate" in arguments_of(name) and "kwargs" not in arguments_of(name)


@pytest.mark.parametrize(
    "name, arguments, slots",
    [
        ("sgd", {}, 0),
        ("sgd", {"momentum": 0.9}, 1),
        ("adagrad", {}, 1),
        ("adam", {"amsgrad": True}, 3),
        ("rmsprop", {"centered": True}, 2),
        ("rowwise_adagrad", {}, 0),
        ("rowwise_adam", {}, 1),
        ("lamb", {}, 2),
    ],
)
def test_slots_are_those_of_the_rule(name, arguments, slots):
    assert num_slots(make_named(name, **arguments)) == slots


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("name", OWN)
def test_dense_gradient(name, rank):
    # Given a variable with a dense gradient
    start, gradient = (START, GRADIENT) if rank == 2 else (START[0], GRADIENT[0])
    variable = tf.Variable(start)
    # When a step is taken
    optimizer = make(name, 0.1, **OWN[name].arguments)
    optimizer.apply_gradients([(tf.constant(gradient), variable)])
    # Then it is that of the rule
    expected = OWN[name].first_step_of_whole(start, gradient, 0.1)
    np.testing.assert_allclose(variable, expected, rtol=1e-4)


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("name", OWN)
def test_dense_gradient_in_a_session(name, use_resource):
    # Given the same in a graph of TensorFlow 1
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("x", initializer=START, use_resource=use_resource)
        optimizer = make(name, 0.1, **OWN[name].arguments)
        step = optimizer.apply_gradients([(tf.constant(GRADIENT), variable)])
        session.run(tf.compat.v1.global_variables_initializer())
        # When a step is taken
        session.run(step)
        values = session.run(variable)
    # Then it is that of the rule
    expected = OWN[name].first_step_of_whole(START, GRADIENT, 0.1)
    np.testing.assert_allclose(values, expected, rtol=1e-4)


@pytest.mark.parametrize("name", OWN)
def test_slots_of_one_number_per_row(name):
    # Given a table and a vector
    variables = [tf.Variable(tf.ones([7, 4])), tf.Variable(tf.ones([5]))]
    optimizer = make(name)
    # When the optimizer makes its slots
    optimizer.build(variables)
    # Then those of one number per row are columns
    shapes = [tuple(v.shape) for v in optimizer.variables]
    kinds = [kind for kind, _ in OWN[name].slots]
    assert shapes.count((7, 1)) == kinds.count("row")
    assert shapes.count((7, 4)) == kinds.count("full")
    assert shapes.count((5,)) == len(kinds)


@pytest.mark.parametrize("name", OWN)
def test_config_round_trip(name):
    # Given an optimizer with settings of its own
    optimizer = make(name, 0.25, epsilon=0.5, skip_nonfinite=True, stochastic_rounding_seed=4)
    # When it is made again of its config
    again = type(optimizer).from_config(optimizer.get_config())
    # Then nothing is lost
    assert again.get_config() == optimizer.get_config()
    assert again.get_config()["skip_nonfinite"] and again.get_config()["epsilon"] == 0.5


@pytest.mark.parametrize("name", OWN)
def test_keras_saves_it_under_its_public_name(name):
    optimizer = make(name, 0.25)
    config = tf.keras.optimizers.serialize(optimizer)
    assert config["registered_name"] == f"group_embedding>{name}"
    assert tf.keras.optimizers.deserialize(config).get_config() == optimizer.get_config()


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="amsgrad"):
        ge.optimizers.Lamb(0.1, amsgrad=True)
    with tf.Graph().as_default(), pytest.raises(TypeError, match="clipnorm"):
        ge.optimizers.RowwiseAdagrad(0.1, clipnorm=1.0)
