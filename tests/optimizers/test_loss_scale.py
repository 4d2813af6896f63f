"""LossScaleOptimizers around wrapped optimizers: of Keras 3, of Keras 2, and legacy ones."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from support.cases import optimizer_cases as cases

import group_embedding as ge
from group_embedding.keras_compat import IS_KERAS_3

keras = tf.keras.optimizers
LossScaleOptimizer = tf.keras.mixed_precision.LossScaleOptimizer

OVERFLOWING = 2 if IS_KERAS_3 else 3  # of four steps; Keras 2 counts one that it skips

MAKES = {
    "momentum": lambda: ge.optimizers.wrap(keras.SGD(0.1, momentum=0.9)),
    "decay": lambda: ge.optimizers.wrap(keras.AdamW(0.05, weight_decay=0.1)),
    "skips": lambda: ge.optimizers.wrap(keras.Adagrad(0.1), skip_nonfinite=True),
    "clipvalue": lambda: ge.optimizers.wrap(keras.Adagrad(0.1, clipvalue=0.02)),
    "clipnorm": lambda: ge.optimizers.wrap(keras.Adagrad(0.1, clipnorm=0.1)),
    "global_clipnorm": lambda: ge.optimizers.wrap(keras.Adagrad(0.1, global_clipnorm=0.1)),
    "average": lambda: ge.optimizers.wrap(keras.Adagrad(0.1, use_ema=True, ema_momentum=0.5)),
    "rowwise": lambda: ge.optimizers.RowwiseAdagrad(0.1),
}


def scale_of(optimizer):
    return float(optimizer.dynamic_scale if IS_KERAS_3 else optimizer.loss_scale)


def apply_scaled(optimizer, loss_of, variables):
    """A step of a user's own loop, in mixed precision."""
    scale = getattr(optimizer, "get_scaled_loss", None) or optimizer.scale_loss
    unscale = getattr(optimizer, "get_unscaled_gradients", list)
    with tf.GradientTape() as tape:
        scaled = scale(loss_of())
    optimizer.apply_gradients(zip(unscale(tape.gradient(scaled, variables)), variables))


def make_step(optimizer, batches, variables):
    """A step of the small model, of the batch of that number."""
    optimizer.build(variables)

    @tf.function
    def step(i):
        apply_scaled(optimizer, lambda: cases.loss_of(variables, batches.at(i)), variables)

    return step


@pytest.mark.covering(1)
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", MAKES)
def test_training_equals_that_of_a_loss_that_is_not_scaled(name, traced):
    # Given batches, of which one makes gradients infinite
    batches = cases.make_batches(4)
    batches.targets[OVERFLOWING, 0, 0] = np.inf
    variables = cases.make_variables()
    optimizer = LossScaleOptimizer(MAKES[name](), initial_scale=2.0**10)
    step = make_step(optimizer, batches, variables)

    # When a model is trained in mixed precision
    for i in range(4):
        (step if traced else step.python_function)(tf.constant(i))

    # Then it has taken the steps of the others
    plain = MAKES[name]()
    expected = cases.train_function(plain, batches.without(OVERFLOWING))
    cases.assert_close(cases.values_of(variables), expected)
    cases.assert_close(cases.slots_of(optimizer.inner_optimizer), cases.slots_of(plain))
    assert scale_of(optimizer) == 2.0**9


@pytest.mark.covering(1)
@pytest.mark.parametrize("overflowing", ["rows", "dense"])
@pytest.mark.parametrize("name", MAKES)
def test_a_gradient_that_overflows_leaves_everything_as_it_is(name, overflowing):
    # Given a step after which only the table, or only what is dense, has an infinite gradient
    table, dense = variables = [tf.Variable(tf.ones([6, 2])), tf.Variable(tf.ones([2]))]
    optimizer = LossScaleOptimizer(MAKES[name](), initial_scale=2.0**10)
    optimizer.build(variables)

    @tf.function
    def step(factor):
        def loss_of():
            (rows,) = ge.group_embedding_lookup([table], [[0, 4, 4]])
            factors = (factor, 1.0) if overflowing == "rows" else (1.0, factor)
            return factors[0] * tf.reduce_sum(rows) + factors[1] * tf.reduce_sum(dense)

        apply_scaled(optimizer, loss_of, variables)

    step(tf.constant(1.0))
    before = cases.values_of(variables), cases.slots_of(optimizer.inner_optimizer)
    # When it is taken
    step(tf.constant(np.inf))
    # Then nothing has changed but the scale, and the next step changes both again
    cases.assert_same_bits(cases.values_of(variables), before[0])
    cases.assert_same_bits(cases.slots_of(optimizer.inner_optimizer), before[1])
    assert scale_of(optimizer) == 2.0**9
    step(tf.constant(1.0))
    for value, old in zip(cases.values_of(variables), before[0]):
        assert (value[:1] != old[:1]).all()


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2 divides gradients before it applies them")
@pytest.mark.parametrize("name", ["momentum", "decay", "skips", "clipvalue", "average", "rowwise"])
def test_tables_are_updated_outside_of_the_branch(name):
    # Given a step in mixed precision
    batches = cases.make_batches(1)
    optimizer = LossScaleOptimizer(MAKES[name]())
    step = make_step(optimizer, batches, cases.make_variables())
    # When it is traced
    graph = step.get_concrete_function(tf.constant(0)).graph
    # Then tables are updated in one fused op, and what is dense in a branch
    ops = cases.live_ops(graph)
    assert [
        ops.count(op)
        for op in (
            "GroupEmbedding>GroupUpdate",
            "GroupEmbedding>GroupUpdateSlices",
            "GroupEmbedding>Overflow",
        )
    ] == [1, 0, 1]
    assert "GroupEmbedding>GroupLookupGrad" not in ops and "If" in ops
    functions = graph.as_graph_def().library.function
    assert not any(
        "GroupEmbedding>GroupUpdate" in node.op for f in functions for node in f.node_def
    )


@pytest.mark.parametrize("others", ["no gradient", "a gradient and none"])
def test_a_variable_without_a_gradient_is_warned_of(others):
    # Given a variable that the loss does not depend on, and maybe one that it does
    table, dense, unused = [tf.Variable(tf.ones([4, 2])) for _ in range(3)]
    variables = [table, unused] if others == "no gradient" else [table, dense, unused]
    optimizer = LossScaleOptimizer(ge.optimizers.wrap(keras.SGD(0.5)))

    def loss_of():
        (rows,) = ge.group_embedding_lookup([table], [[0, 1]])
        return tf.reduce_sum(rows) + tf.reduce_sum(dense)

    # When a step is taken
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        apply_scaled(optimizer, loss_of, variables)
    # Then it is one for all others, and Keras 3 says so
    rows = [variable.numpy()[:, 0].tolist() for variable in (table, dense, unused)]
    of_dense = [1.0] * 4 if others == "no gradient" else [0.5] * 4
    assert rows == [[0.5, 0.5, 1.0, 1.0], of_dense, [1.0] * 4]
    warned = any("Gradients do not exist" in str(warning.message) for warning in caught)
    assert warned or not IS_KERAS_3


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2 calls no optimizer that has no variables")
def test_constraints_are_kept():
    # Given a table whose rows may not be negative
    class Bag(tf.keras.layers.Layer):
        def build(self, _):
            self.table = self.add_weight(shape=[5, 2], constraint="non_neg", initializer="ones")
            self.bias = self.add_weight(shape=[2], initializer="ones")

        def call(self, ids):
            return ge.group_embedding_lookup([self.table.value], [ids])[0] + self.bias

    bag = Bag()
    bag.build(None)
    optimizer = LossScaleOptimizer(ge.optimizers.wrap(keras.SGD(5.0)))
    optimizer.build(bag.trainable_variables)
    # When a step would make some so
    step = tf.function(
        lambda: apply_scaled(
            optimizer, lambda: tf.reduce_sum(bag(tf.constant([1, 3]))), bag.trainable_variables
        )
    )
    step()
    # Then they are zero
    np.testing.assert_array_equal(bag.table.numpy()[:, 0], [1, 0, 1, 0, 1])


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has no legacy optimizers")
def test_legacy_optimizers():
    # Given a wrapped legacy optimizer that a LossScaleOptimizer wraps
    table = tf.Variable(tf.ones([4, 2]))
    optimizer = LossScaleOptimizer(ge.optimizers.wrap(keras.legacy.Adagrad(0.1)))

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            (output,) = ge.group_embedding_lookup([table], [[0, 1]])
            loss = optimizer.get_scaled_loss(tf.reduce_sum(output) * factor)
        gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, [table]))
        optimizer.apply_gradients(zip(gradients, [table]))

    # When the loss is fine, and when it is not
    step(tf.constant(2.0))
    step(tf.constant(np.inf))
    # Then one step was taken
    moved = 1 - 0.1 * 2 / np.sqrt(4.1)
    np.testing.assert_allclose(table[:, 0], [moved, moved, 1, 1], rtol=1e-5)


def make_rows():
    return tf.Variable(tf.ones([50, 2]))


def make_keys():
    return ge.get_embedding_variable("scaled", 2, initializer=tf.keras.initializers.Ones())


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2's are of classes without a public name")
def test_a_loss_scale_is_one_whatever_derives_from_it():
    # Given a class of the user's own
    class MyLossScale(LossScaleOptimizer):
        pass

    # When one of it, and one of Keras's, go inside of a wrapper instead of around it
    kinds = [MyLossScale, LossScaleOptimizer]
    # Then both are known for what they are
    for kind in kinds:
        with pytest.raises(TypeError, match="got a LossScaleOptimizer; it goes"):
            ge.sok.OptimizerWrapper(kind(keras.SGD()))


@pytest.mark.parametrize("with_dense", [False, True])
@pytest.mark.parametrize("make_table", [make_rows, make_keys])
def test_the_rows_of_the_step_alone_are_asked(make_table, with_dense):
    # Given a table, of which a step looks two rows up
    table, ids, dense = make_table(), tf.constant([0, 1], tf.int64), tf.Variable(tf.ones([2]))
    variables = [table, dense] if with_dense else [table]
    optimizer = LossScaleOptimizer(ge.optimizers.wrap(keras.SGD(0.5)))

    @tf.function
    def step(factor):
        def loss_of():
            (output,) = ge.group_embedding_lookup([table], [ids])
            return tf.reduce_sum(output + dense - dense) * factor

        apply_scaled(optimizer, loss_of, variables)

    # When the loss is fine, and when it is not
    step(tf.constant(1.0))
    step(tf.constant(np.inf))
    # Then one step was taken
    (rows,) = ge.group_embedding_lookup([table], [ids])
    np.testing.assert_array_equal(rows, [[0.5, 0.5]] * 2)
    # And nothing was made that has the table's shape
    graph = step.get_concrete_function(tf.constant(1.0)).graph
    shapes = [out.shape for op in graph.get_operations() for out in op.outputs]
    assert not any(shape.rank == 2 and shape[0] == 50 for shape in shapes)
