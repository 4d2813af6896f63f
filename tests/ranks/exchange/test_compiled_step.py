"""Steps that are compiled, on several ranks: beside the same steps in a plain function."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.distributed import enable_distributed_strategy
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows
from group_embedding.training.compiled_step import CompiledStep

STEPS = 6


def train(make, clip):
    rng = np.random.default_rng(4)
    start = rng.normal(size=(17, 3)).astype("float32")
    sharded = make_table(
        start.shape,
        lambda *_, **__: tf.constant(start),
        lambda shape, initializer: tf.Variable(initializer(shape)),
    )
    keyed = ge.get_embedding_variable(
        f"keyed_{make.__name__}_{bool(clip)}", 2, initializer=tf.keras.initializers.Constant(0.3)
    )
    kernel = tf.Variable(rng.normal(size=(5, 1)).astype("float32"))
    variables = [sharded, keyed, kernel]
    optimizer = ge.DistributedOptimizer(
        ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.2, **clip))
    )

    def step(rows, keys, labels):
        with tf.GradientTape() as tape:
            vectors = ge.group_embedding_lookup_sparse([sharded, keyed], [rows, keys], "mean")
            loss = tf.reduce_mean((tf.concat(vectors, axis=-1) @ kernel - labels) ** 2)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        return loss

    step, losses = make(step), []
    draw = np.random.default_rng([8, exchange.current().rank])
    for number in range(STEPS):
        samples = 4 if number % 2 else 3
        rows = tf.RaggedTensor.from_tensor(draw.integers(0, 17, (samples, 2)))
        keys = tf.RaggedTensor.from_tensor(draw.integers(0, 9, (samples, 1)))
        labels = draw.normal(size=(samples, 1)).astype("float32")
        losses.append(step(rows, keys, tf.constant(labels)).numpy())
    keys, rows = keyed.export(gather=True)[:2]
    order = np.argsort(keys)
    return losses, [gather_rows(sharded).numpy(), kernel.numpy(), rows.numpy()[order]]


def plain(step):
    return tf.function(step, reduce_retracing=True)


def compiled(step):
    compiled.step = CompiledStep(step)
    return tf.function(compiled.step, autograph=False, reduce_retracing=True)


def train_on_rank(clip):
    enable_distributed_strategy()
    results = [train(make, clip) for make in (plain, compiled)]
    return *results, compiled.step.num_programs


@pytest.mark.parametrize("clip", [{}, {"clipvalue": 0.01}], ids=str)
def test_ranks_train_as_without_compilation(two_ranks, clip):
    # Given ranks whose tables are spread, each with batches of its own

    for expected, got, num_programs in two_ranks.run(train_on_rank, clip):
        # When their steps are compiled: gradients are averaged between two programs
        assert num_programs == 2

        # Then they learn the same
        np.testing.assert_allclose(got[0], expected[0], atol=1e-6)
        for values, same in zip(got[1], expected[1], strict=True):
            np.testing.assert_allclose(values, same, atol=1e-6)


def route_in_a_step_on_rank():
    enable_distributed_strategy()
    table = make_table(
        (6, 2), tf.ones_initializer(), lambda shape, init: tf.Variable(init(shape), name="routed")
    )

    @ge.training.make_step
    def step(ids):
        rows = tf.RaggedTensor.from_tensor(ids)
        routed = ge.route_ids([table], [rows], "sum")
        return ge.group_embedding_lookup_sparse([table], routed, "sum")[0]

    try:
        step(tf.constant([[1, 2]]))
    except ValueError as error:
        return str(error)


def test_an_exchange_that_a_step_makes_itself_is_refused(two_ranks):
    for message in two_ranks.run(route_in_a_step_on_rank):
        assert "expected no op that waits for other ranks" in message
        assert "map(layer.route)" in message
