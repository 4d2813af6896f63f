"""Tables of a job that are placed by bytes: the same on all ranks, trained, and their bytes."""

import pytest
import tensorflow as tf
from support.cases import placed_tables as cases

import group_embedding as ge
from group_embedding import exchange


def train_placed():
    """Returns what this rank placed, and the bytes that its second step sent, and was to send."""
    ge.enable_distributed_strategy()
    rank = exchange.current().rank
    features = [f for f in cases.features() if f.name != "placed"]  # on one rank: others send more
    batches = cases.batches(features, seed=rank)  # of each rank its own
    adagrad = tf.keras.optimizers.Adagrad(0.1)
    found = ge.place_tables(features, batches=batches, optimizer=adagrad)
    layer = ge.layers.GroupEmbedding(found.features)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(adagrad))
    inputs = {name: tf.constant(ids) for name, ids in batches[0].items()}
    layer(inputs)  # makes the tables, with the same values on all ranks

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(out**2) for out in layer(inputs).values()])
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    step()
    before = sum(exchange.current().use().sent_bytes)
    step()
    return {
        "placements": {name: table.placement for name, table in found.tables.items()},
        "crossings": found.crossings,
        "text": str(found),
        "sent": sum(exchange.current().use().sent_bytes) - before,
        "expected": sum(table.sent_bytes for table in found.tables.values()),
    }


@pytest.fixture(scope="module")
def placed(several_ranks):
    return several_ranks.run(train_placed)


def test_all_ranks_have_the_placements_that_rank_0_chose(placed, one_host):
    # Given ranks with batches of their own, When they have placed the same tables
    first, *others = placed

    # Then all have those of rank 0, over the ranks of this host
    expected = {"replicated", "distributed", "distributed:sums", "columns:sums"}
    assert set(first["placements"].values()) == expected
    for other in others:
        assert other["placements"] == first["placements"]
    assert f"over {len(placed)} ranks on 1 host" in first["text"]


def test_steps_send_the_bytes_that_were_expected(placed, one_host):
    for of_rank in placed:
        assert of_rank["sent"] == pytest.approx(of_rank["expected"], rel=0.05)
