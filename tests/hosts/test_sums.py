"""Owners on other hosts send sums of rows, or columns of them: as often as rows cross the link, in
fewer bytes."""

import time

import numpy as np
import pytest
import tensorflow as tf
from hosts.test_wire import set_links
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows

LAYOUTS = by_day(["ab", "aabb", "abc"], [], nightly=["aabb", "abc"])
SAMPLES, NUM_KEYS, NUM_STEPS = 12, 100_000, 3


def trainer(suffix):
    """Tables with sums, one of which is on one rank and one is spread by columns, beside one of
    rows; and a step."""
    words = [f"distributed{suffix}", f"localized:0{suffix}", "distributed"]
    tables = [
        ge.get_embedding_variable(
            f"table{suffix.replace(':', '_')}_{t}",
            8 + t,
            initializer=tf.keras.initializers.Constant(0.1),
            placement=word,
        )
        for t, word in enumerate(words)
    ]
    tables.append(
        make_table(
            (NUM_KEYS, 12),
            tf.keras.initializers.Constant(0.1),
            lambda shape, initializer: tf.Variable(initializer(shape, "float32")),
            f"columns{suffix}",
        )
    )
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))

    @tf.function(reduce_retracing=True)
    def step(ids):
        with tf.GradientTape() as tape:
            outputs = ge.group_embedding_lookup_sparse(
                tables, ids, ["mean", "sum", "sqrtn", "mean"]
            )
            loss = tf.reduce_mean(tf.tanh(tf.concat(outputs, 1)))
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    return tables, step


def ids_of(number, num_ranks, rank):
    """This rank's part of a batch of 12 samples of 20 ids for each table."""
    ids = np.random.default_rng(number).integers(0, NUM_KEYS, [4, SAMPLES, 20])
    mine = np.split(ids, num_ranks, axis=1)[rank]
    return [tf.RaggedTensor.from_tensor(tf.constant(of_table)) for of_table in mine]


def take_steps(suffix):
    """Takes a step, and on command some more. Returns the tables."""
    ge.enable_distributed_strategy(timeout_seconds=10)
    exchange, (tables, step) = ge.exchange.current(), trainer(suffix)
    for i in range(NUM_STEPS + 1):
        if i == 1:
            print("is ready", flush=True)
            exchange.barrier("all are ready")
            time.sleep(2)  # while the test sets the link
            print("begins", flush=True)
        step(ids_of(i, exchange.num_ranks, exchange.rank))
    print("is done", flush=True)
    time.sleep(1)  # while the test counts
    return content_of(tables, gather=True)


def content_of(tables, gather):
    *keyed, by_columns = tables
    content = [(np.arange(NUM_KEYS), gather_rows(by_columns).numpy())]
    for table in keyed:
        keys, values = map(np.asarray, table.export(gather=gather)[:2])
        content.append((np.sort(keys), values[np.argsort(keys)]))
    return content


@pytest.mark.parametrize("where", LAYOUTS)
def test_sums_cross_as_often_as_rows_and_are_those_of_one_process(make_bed, start_job, where):
    # Given tables in one process, and ranks on hosts that are 100 ms from each other
    tables, step = trainer("")
    for i in range(NUM_STEPS + 1):
        step(ids_of(i, 1, 0))
    bed, sent = make_bed(len(set(where))), {}
    for suffix in ("", ":sums"):
        # When they train tables whose owners send rows, or sums
        job = start_job(bed, where, take_steps, suffix)
        job.wait_until_all_said("is ready")
        set_links(bed, delay=100)
        job.wait_until_all_said("begins")
        bed.count()
        job.wait_until_all_said("is done")
        steps = bed.count()
        set_links(bed, delay=0)
        # Then a step crosses the link for ids, rows or sums, and gradients
        assert steps.crossings <= 3 * NUM_STEPS + 2, steps
        # and all ranks have the tables of one process
        for found in job.results():
            for (keys, values), (known, expected) in zip(found, content_of(tables, gather=False)):
                np.testing.assert_array_equal(keys, known)
                np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
        sent[suffix] = steps.bytes
    print(f"bytes: {sent}")
    assert sent[":sums"] < 0.8 * sent[""]
