"""Statistics of keyed tables over ranks, and of what ranks send each other."""

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange

NUM_STEPS, BATCH = 4, 60


def train_on_rank(tiers=("dram",)):
    """(statistics before the last step, statistics after it, seconds of that step)"""
    ge.enable_distributed_strategy()
    rank = exchange.current().rank
    tables = [ge.keyed_table(name, 8, tiers=tiers) for name in ("counted_users", "counted_items")]
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)))
    found = []
    for step in range(NUM_STEPS):
        found.append(ge.statistics(tables))
        ids = tf.constant(np.arange(BATCH)[:, None] + BATCH * (rank + 100 * step))
        with tf.GradientTape() as tape:
            rows = ge.lookup_sparse(tables, [tf.RaggedTensor.from_tensor(ids)] * 2, "sum")
            loss = tf.add_n([tf.reduce_sum(of) for of in rows])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
    found.append(ge.statistics(tables))
    return found[-2], found[-1], found[-1].prometheus()


def least_sent(num_ranks):
    """Half of the bytes of ids and rows of a step that a rank asks another for."""
    return 2 * BATCH // num_ranks * (8 + 4 * 8) // 2


def test_each_rank_counts_its_keys_and_what_it_sends(several_ranks):
    of_ranks = several_ranks.run(train_on_rank)

    num_ranks = len(of_ranks)
    for rank, (before, found, text) in enumerate(of_ranks):
        assert found.rank == rank
        # Each key is new, and is looked up on the rank that has it.
        for table in found.tables.values():
            assert table.looked_up == table.admitted == table.keys > 0
        # Ids, rows of two tables and their gradients go to each other rank in each step.
        sent = found.exchange.sent_bytes
        assert len(sent) == len(found.exchange.hosts) == num_ranks and sent[rank] == 0
        for other in set(range(num_ranks)) - {rank}:
            assert sent[other] - before.exchange.sent_bytes[other] > least_sent(num_ranks)
        assert found.exchange.gpu_sent_bytes == (0,) * num_ranks
        assert found.exchange.wait_seconds > before.exchange.wait_seconds > 0
        assert f'group_embedding_sent_bytes_total{{to_rank="{rank}"' in text
    keys = [found.tables["counted_users"].keys for _, found, _ in of_ranks]
    assert sum(keys) == num_ranks * BATCH * NUM_STEPS
