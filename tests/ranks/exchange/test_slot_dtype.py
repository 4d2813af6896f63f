"""Slots in bfloat16 of tables whose keys are spread over ranks."""

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange

DIM, NUM_STEPS, BATCH, SEED = 8, 10, 48, 3


def batches():
    rng = np.random.default_rng(SEED)
    known = rng.integers(-(2**63), 2**63 - 1, 60)
    return [rng.choice(known, (BATCH, 1)) for _ in range(NUM_STEPS)]


def train():
    """{key: the bits of its row} that this rank has."""
    num_ranks, rank = exchange.current().num_ranks, exchange.current().rank
    table = ge.keyed_table(
        "of_ranks", DIM, initializer=tf.ones_initializer(), slot_dtype="bfloat16"
    )
    adam = ge.optimizers.wrap(tf.keras.optimizers.Adam(0.01), stochastic_rounding_seed=SEED)
    optimizer = ge.DistributedOptimizer(adam)
    for batch in batches():
        ids = tf.RaggedTensor.from_tensor(batch[rank::num_ranks])
        with tf.GradientTape() as tape:
            (rows,) = ge.lookup_sparse([table], [ids], "sum")
            loss = tf.reduce_sum(rows) * num_ranks  # sums of ones are exact in any order
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    found = table.export()
    return {int(key): row.tobytes() for key, row in zip(found.keys.numpy(), found.values.numpy())}


def train_on_rank():
    ge.enable_distributed_strategy()
    return train()


def test_ranks_draw_what_one_process_draws(several_ranks):
    # Given a table trained by one process, and one that ranks share
    alone = train()
    # When what each rank has of it is put together
    together = {}
    for of_rank in several_ranks.run(train_on_rank):
        assert not together.keys() & of_rank.keys()
        together.update(of_rank)
    # Then each row, which its slots moved, has the same bits
    assert together == alone
    assert len(set(alone.values())) > len(alone) / 2
