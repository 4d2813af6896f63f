"""RowwiseAdagrad, RowwiseAdam and Lamb on variables that are no tables, and as Keras knows them."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

GRADIENT = np.array([[1.0, 3.0], [0.0, 2.0]], np.float32)
START = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def rowwise_adagrad(x, g):
    square = g**2 if x.ndim != 2 else (g**2).mean(axis=-1, keepdims=True)
    return x - 0.1 * g / np.sqrt(0.1 + square)


def rowwise_adam(x, g):
    square = g**2 if x.ndim != 2 else (g**2).mean(axis=-1, keepdims=True)
    return x - 0.1 * g / np.sqrt(square)  # of the first step


def lamb(x, g):
    r = g / (np.abs(g) + 1e-6)  # of the first step
    return x - 0.1 * np.linalg.norm(x) / np.linalg.norm(r) * r


RULES = [
    (ge.optimizers.RowwiseAdagrad, rowwise_adagrad),
    (ge.optimizers.RowwiseAdam, rowwise_adam),
    (ge.optimizers.Lamb, lamb),
]


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("make, rule", RULES)
def test_dense_gradient(make, rule, rank):
    # Given a variable with a dense gradient
    start, gradient = (START, GRADIENT) if rank == 2 else (START[0], GRADIENT[0])
    variable = tf.Variable(start)
    # When a step is taken
    make(0.1).apply_gradients([(tf.constant(gradient), variable)])
    # Then it is that of the rule, for the variable as a whole
    np.testing.assert_allclose(variable, rule(start, gradient), rtol=1e-4)


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("make, rule", RULES)
def test_dense_gradient_in_a_session(make, rule, use_resource):
    # Given the same in a graph of TensorFlow 1
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("x", initializer=START, use_resource=use_resource)
        step = make(0.1).apply_gradients([(tf.constant(GRADIENT), variable)])
        session.run(tf.compat.v1.global_variables_initializer())
        # When a step is taken
        session.run(step)
        values = session.run(variable)
    # Then it is that of the rule
    np.testing.assert_allclose(values, rule(START, GRADIENT), rtol=1e-4)


@pytest.mark.parametrize(
    "make, num_whole", [(ge.optimizers.RowwiseAdagrad, 0), (ge.optimizers.RowwiseAdam, 1)]
)
def test_one_number_per_row(make, num_whole):
    # Given a table and a vector
    variables = [tf.Variable(tf.ones([7, 4])), tf.Variable(tf.ones([5]))]
    optimizer = make()
    # When the optimizer makes its slots
    optimizer.build(variables)
    # Then one of the table's is a column
    shapes = [tuple(v.shape) for v in optimizer.variables]
    assert shapes.count((7, 1)) == 1 and shapes.count((7, 4)) == num_whole
    assert shapes.count((5,)) == 1 + num_whole


@pytest.mark.parametrize("make", [make for make, _ in RULES])
def test_config_round_trip(make):
    # Given an optimizer with settings of its own
    optimizer = make(0.25, epsilon=0.5, skip_nonfinite=True, stochastic_rounding_seed=4)
    # When it is made again of its config
    again = type(optimizer).from_config(optimizer.get_config())
    # Then nothing is lost
    assert again.get_config() == optimizer.get_config()
    assert again.get_config()["skip_nonfinite"] and again.get_config()["epsilon"] == 0.5


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="amsgrad"):
        ge.optimizers.Lamb(0.1, amsgrad=True)
    with tf.Graph().as_default(), pytest.raises(TypeError, match="clipnorm"):
        ge.optimizers.RowwiseAdagrad(0.1, clipnorm=1.0)
