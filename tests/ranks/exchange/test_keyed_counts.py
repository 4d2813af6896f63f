"""Counts of keys that are not admitted, in the filters of several ranks."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange

KEYS = np.arange(40)
FILTERS = {
    "counter": ge.CounterFilter(5),
    # So large that it makes nothing up.
    "large bloom": ge.CBFFilter(5, max_element_size=10_000, false_positive_probability=1e-6),
    # So small that it makes up counts of keys that it never met.
    "small bloom": ge.CBFFilter(5, max_element_size=20, false_positive_probability=0.5),
}


def train_on_rank():
    """{filter: how often each of KEYS was trained, as this rank knows, and as all do}: key k was,
    k % 4 times, by all ranks together."""
    ge.enable_distributed_strategy()
    num_ranks, rank = exchange.current().num_ranks, exchange.current().rank
    counts = {}
    for name, option in FILTERS.items():
        ev_option = ge.EmbeddingVariableOption(filter_option=option)
        table = ge.get_embedding_variable(
            f"counted {name}".replace(" ", "_"), 2, ev_option=ev_option
        )
        optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)))
        for turn in range(3):
            keys = KEYS[turn < KEYS % 4]
            ids = tf.RaggedTensor.from_tensor(keys[rank::num_ranks, None])
            with tf.GradientTape() as tape:
                (rows,) = ge.group_embedding_lookup_sparse([table], [ids], "sum")
                loss = tf.reduce_sum(rows)
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        counts[name] = [table.get_frequency(KEYS, gather).numpy() for gather in (False, True)]
    return counts, reads_on_rank()


def reads_on_rank():
    """Returns the rows of two keys that four steps read in a table that starts as ones and admits
    keys seen five times: both ranks look both keys up in every step."""
    option = ge.EmbeddingVariableOption(
        filter_option=FILTERS["counter"],
        init_option=ge.InitializerOption(tf.ones_initializer(), default_value_no_permission=7.0),
    )
    table = ge.get_embedding_variable("read", 2, ev_option=option)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0)))
    reads = []
    for _ in range(4):
        with tf.GradientTape() as tape:
            (rows,) = ge.group_embedding_lookup([table], [tf.constant([2, 3], tf.int64)])
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        reads.append(rows.numpy()[:, 0].tolist())
    return reads


@pytest.mark.parametrize("name", ["counter", "large bloom"])
def test_counts_of_keys_that_are_not_admitted(name, trained):
    for counts, _ in trained:
        np.testing.assert_array_equal(counts[name][1], KEYS % 4)


def test_a_rank_makes_up_no_counts_of_keys_of_others(trained):
    of_ranks = np.stack([counts["small bloom"][0] for counts, _ in trained])

    assert (np.count_nonzero(of_ranks, axis=0) <= 1).all()
    np.testing.assert_array_equal(trained[0][0]["small bloom"][1], of_ranks.sum(axis=0))


def test_a_step_reads_what_the_steps_before_it_admitted(trained):
    # Each step counts a key twice: the third one admits it, and trains it by both ranks' mean.
    for _, reads in trained:
        assert reads == [[7, 7], [7, 7], [7, 7], [0, 0]]


@pytest.fixture(scope="module")
def trained(two_ranks):
    return two_ranks.run(train_on_rank)
