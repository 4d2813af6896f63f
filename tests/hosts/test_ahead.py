"""Steps on hosts whose next batch goes ahead: they wait for the link once less, and train the same
bits on a slow link."""

import time

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge

LAYOUTS = by_day(["ab", "aabb", "abc"], ["ab"], nightly=["aabb", "abc"])
DIMS = [4, 16]
NUM_STEPS = 8


def batches_of(num_steps, num_ids):
    """This rank's batches, of which neighbours have about a third of their ids in common."""
    rank = ge.exchange.current().rank
    for step in range(num_steps):
        draw = np.random.default_rng([7, step, rank])
        low = 2 * num_ids * step
        yield tuple(tf.constant(draw.integers(low, low + 3 * num_ids, num_ids)) for _ in DIMS)


def trainer():
    constant = tf.keras.initializers.RandomUniform(seed=1)
    tables = [ge.get_embedding_variable(f"ahead_{dim}", dim, initializer=constant) for dim in DIMS]
    kernel = tf.Variable(tf.fill([sum(DIMS), 2], 0.2))
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))

    @ge.training.make_step
    def step(*ids):
        with tf.GradientTape() as tape:
            vectors = tf.concat(ge.group_embedding_lookup(tables, ids), 1)
            loss = tf.reduce_mean(tf.tanh(vectors) @ kernel)
        trained = [*tables, kernel]
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return loss

    return tables, kernel, step


def train(ahead):
    """Trains; returns losses and content."""
    ge.enable_distributed_strategy(timeout_seconds=10, ahead=ahead)
    tables, kernel, step = trainer()
    losses = []
    for i, loss in enumerate(step.over(batches_of(8, 50))):
        losses.append(float(loss))
        print(f"step {i} is done", flush=True)
    content = []
    for table in tables:
        keys, values = map(np.asarray, table.export(gather=True)[:2])
        content.append(values[np.argsort(keys)])
    return [losses, *content, kernel.numpy()]


def count_crossings(ahead):
    """Takes a step, and on command some more, whose dense part takes longer than the link."""
    ge.enable_distributed_strategy(timeout_seconds=10, ahead=ahead)
    exchange, (_, _, step) = ge.exchange.current(), trainer()
    for i, _ in enumerate(step.over(batches_of(2 + NUM_STEPS, 12))):
        if i == 1:
            print("is ready", flush=True)
            exchange.barrier("all are ready")
            time.sleep(3)  # idle, while the test sets the link
            print("begins", flush=True)
    print("is done", flush=True)
    time.sleep(2)


@pytest.mark.timed
@pytest.mark.parametrize(
    "ahead, ways",
    # By day `test_wire.py` counts steps that do not go ahead.
    [pytest.param(False, 4, marks=pytest.mark.slow), (True, 3)],
)
def test_a_step_waits_for_the_link_once_less(make_bed, start_job, ahead, ways):
    # Given two ranks that train two tables and a dense kernel, 150 ms from each other
    bed = make_bed(2)
    job = start_job(bed, "ab", count_crossings, ahead)
    job.wait_until_all_said("is ready")
    bed.set_link("a", "b", delay=150)

    # When they take some steps
    job.wait_until_all_said("begins")
    bed.count()
    job.wait_until_all_said("is done")
    steps = bed.count()
    job.results()

    # Then the longest chain of packets is that of ids, rows and two of the kernel's gradients; with
    # the next batch ahead, of rows that changed and these two. Where it begins and ends, signs of
    # life, and a rank that the machine stops for a while, make a difference of some.
    print(f"crossings a step: {steps.crossings / NUM_STEPS}")
    assert -3 <= steps.crossings - ways * NUM_STEPS < 0.75 * NUM_STEPS, steps


@pytest.mark.parametrize("where", LAYOUTS)
def test_a_slow_link_changes_no_bit(make_bed, start_job, where):
    # Given hosts 20 ms from each other
    results = []
    for ahead in (False, True):
        bed = make_bed(len(set(where)))
        for one, other in {("a", "b"), ("a", max(where)), ("b", max(where))} - {("b", "b")}:
            bed.set_link(one, other, delay=20)

        # When they train, with and without the next batch ahead
        results.append(start_job(bed, where, train, ahead, timeout=60).results())

    # Then they end, and have trained the same
    for in_turn, of_ahead in zip(*results, strict=True):
        for expected, got in zip(in_turn, of_ahead, strict=True):
            np.testing.assert_array_equal(got, expected)
