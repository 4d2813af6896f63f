"""A LossScaleOptimizer, of mixed precision in float16, skips a step whose gradients overflow on one
rank: on all of them."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.ranks.sharding.make_sharded_table import make_table

IS_KERAS_3 = tf.__version__.startswith("2.2")
NUM_ROWS, DIM, START = 12, 4, 1.0
LossScaleOptimizer = tf.keras.mixed_precision.LossScaleOptimizer


def inside(make):
    return LossScaleOptimizer(ge.DistributedOptimizer(make()))


def outside(make):
    return ge.DistributedOptimizer(LossScaleOptimizer(make()))


def wrapped():
    return ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.5))


def stock():
    return tf.keras.optimizers.SGD(0.5)


MAKES = {
    "inside": lambda: inside(wrapped),
    "outside": lambda: outside(wrapped),
    "stock": lambda: inside(stock),
}
if not IS_KERAS_3:
    MAKES["legacy"] = lambda: inside(lambda: tf.keras.optimizers.legacy.SGD(0.5))


def of_tensorflow_1():
    optimizer = ge.optimizers.wrap(tf.compat.v1.train.AdagradOptimizer(0.5))
    scale = tf.compat.v1.mixed_precision.DynamicLossScale()
    optimizer = ge.DistributedOptimizer(optimizer)
    return tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, scale)


MAKES["tensorflow_1"] = of_tensorflow_1


def scale_of(optimizer):
    for name in ("dynamic_scale", "loss_scale", "_loss_scale"):
        if hasattr(optimizer, name):
            scale = getattr(optimizer, name)
            return float(scale() if name == "_loss_scale" else scale)


def minimize(optimizer, loss_of, variables):
    if hasattr(optimizer, "minimize"):
        optimizer.minimize(loss_of, var_list=variables)
        return
    with tf.GradientTape() as tape:
        scaled = optimizer.scale_loss(loss_of())
    optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables))


def train(make):
    """Returns, for a step in which the gradient of the rows overflows on the last rank and for one
    in which that of the dense variable does: this rank's rows and dense variable before it, after
    it and after the next one; the scale's factor; and the updates of tables that are not in a
    branch."""
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    optimizer = make()
    rows = make_table(
        (NUM_ROWS, DIM),
        lambda shape, dtype=None: tf.fill(shape, START),
        lambda shape, initializer: tf.Variable(initializer(shape), name="rows"),
    )
    dense = tf.Variable(tf.fill([DIM], START))
    variables = [rows, dense]
    ids = tf.range(rank, NUM_ROWS, num_ranks, dtype=tf.int64)  # its own: others see no infinity

    @tf.function(reduce_retracing=True)
    def step(factors):
        def loss_of():
            (vectors,) = ge.group_embedding_lookup([rows], [ids])
            sums = tf.stack([tf.reduce_sum(vectors), tf.reduce_sum(dense)])
            return tf.reduce_sum(factors * sums)

        minimize(optimizer, loss_of, variables)

    ones, states, scales = [1.0, 1.0], [], []
    large = np.inf if rank == num_ranks - 1 else 1.0
    for factors in (ones, [large, 1.0], ones, [1.0, large], ones):
        step(tf.constant(factors))
        states.append((rows.numpy(), dense.numpy()))
        scales.append(scale_of(optimizer))
    ops = step.get_concrete_function(tf.constant(ones)).graph.get_operations()
    updates = [op.type for op in ops if op.type.startswith("GroupEmbedding>GroupUpdate")]
    skipped = {"rows": 1, "dense": 3}
    return {
        overflowing: (states[at - 1 : at + 2], scales[at] / scales[at - 1], updates)
        for overflowing, at in skipped.items()
    }


def train_on_rank():
    ge.enable_distributed_strategy()
    return {name: train(make) for name, make in MAKES.items()}


CASES = [(name, overflowing) for name in MAKES for overflowing in ("rows", "dense")]


@pytest.fixture(scope="module")
def ranks(several_ranks):
    # Given ranks, when they train, and a gradient of the last one overflows in a step
    of_ranks = several_ranks.run(train_on_rank)
    return {(name, over): [found[name][over] for found in of_ranks] for name, over in CASES}


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_all_ranks_skip_it(ranks, case):
    # Then no rank takes that step, and all halve the scale
    for (before, after, _), factor, _ in ranks[case]:
        for variable, then in zip(before, after):
            np.testing.assert_array_equal(then, variable)
        assert factor == 0.5


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_and_take_the_next(ranks, case):
    # Then all of them take the step after it, and agree on what is dense
    for (_, after, later), _, _ in ranks[case]:
        for variable, then in zip(after, later):
            assert np.isfinite(then).all() and (then != variable).all()
    dense = [later[1] for (_, _, later), _, _ in ranks[case]]
    assert all((of_rank == dense[0]).all() for of_rank in dense)


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2 divides gradients before it applies them")
@pytest.mark.parametrize(
    "case", [case for case in CASES if case[0] != "tensorflow_1"], ids="-".join
)
def test_owners_update_rows_outside_of_the_branch(ranks, case):
    # Then a wrapped optimizer has updated the rows by one op, and a stock one by none
    for *_, updates in ranks[case]:
        assert updates == ([] if case[0] == "stock" else ["GroupEmbedding>GroupUpdate"])
