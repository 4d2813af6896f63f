"""The owner of an id, against where the rows are after training on several ranks."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.ranks.sharding.make_sharded_table import make_table

NUM_ROWS = 11
KEYS = {
    "int64": np.array([0, 1, 2, 3, -1, -(2**63), 2**40, 2**63 - 1, 77, 78]),
    "int32": np.array([0, 1, 2, 3, -1, -(2**31), 2**31 - 1, 77, 78], np.int32),
    "uint64": np.array([0, 1, 2, 3, 2**40, 2**63, 2**64 - 1, 77, 78], np.uint64),
}


def numbered_rows(placement):
    """A table of which every row has its number as its value."""

    def start(shape, dtype=None):
        del dtype
        return tf.tile(tf.range(float(shape[0]))[:, tf.newaxis], [1, shape[1]])

    return make_table(
        (NUM_ROWS, 2), start, lambda shape, initializer: tf.Variable(initializer(shape)), placement
    )


def owners_on_rank():
    """The owners of ids, and the ids whose rows are here, by the table's name."""
    ge.enable_distributed_strategy()
    keyed = {name: ge.get_embedding_variable(name, 2, key_dtype=tf.as_dtype(name)) for name in KEYS}
    keyed["one_rank"] = ge.get_embedding_variable("one_rank", 2, placement="localized:1")
    ids = {**KEYS, "one_rank": KEYS["int64"]}
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)))
    names = list(keyed)
    with tf.GradientTape() as tape:
        rows = ge.group_embedding_lookup([keyed[n] for n in names], [ids[n] for n in names])
        loss = tf.add_n([tf.reduce_sum(of_table) for of_table in rows])
    tables = [keyed[name] for name in names]
    optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
    here = {name: sorted(keyed[name].export().keys.numpy().tolist()) for name in names}

    by_row = {"mod": numbered_rows("distributed"), "localized": numbered_rows("localized:1")}
    for name, table in by_row.items():
        ids[name] = np.arange(NUM_ROWS, dtype=np.int32)
        here[name] = table.numpy()[:, 0].astype(int).tolist()
    tables = {**keyed, **by_row}
    said = {name: ge.owner_of(table, ids[name]).numpy() for name, table in tables.items()}
    in_a_function = tf.function(lambda keys: ge.owner_of(keyed["int64"], keys))
    np.testing.assert_array_equal(in_a_function(tf.constant(KEYS["int64"])), said["int64"])
    whole = ge.owner_of(tf.Variable(tf.zeros([3, 2])), [0, 2]).numpy().tolist()
    assert whole == [exchange.current().rank] * 2
    return ids, said, here


@pytest.fixture(scope="module")
def ranks(two_ranks):
    return two_ranks.run(owners_on_rank)


@pytest.mark.parametrize("name", [*KEYS, "one_rank", "mod", "localized"])
def test_the_owner_is_the_rank_that_has_the_row(ranks, name):
    for rank, (ids, said, here) in enumerate(ranks):
        owned = sorted(ids[name][said[name] == rank].tolist())
        assert owned == here[name]
        assert said[name].shape == ids[name].shape


def test_every_rank_has_keys(ranks):
    assert all(here["int64"] and here["uint64"] for _, _, here in ranks)
