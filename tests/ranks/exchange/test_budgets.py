"""Budgets of tables whose keys are spread over ranks."""

import numpy as np
import tensorflow as tf
from support.oracles.budget import BudgetedDict, content, zipf_batches

import group_embedding as ge
from group_embedding import exchange

MAX_KEYS, NUM_STEPS, BATCH = 120, 12, 24


def batches():
    return zipf_batches(seed=13, num_batches=NUM_STEPS, size=BATCH, num_keys=400)


def train_on_rank():
    """{budget_of: ({key: (count, version)} of all ranks, the most keys that this rank had)}."""
    ge.enable_distributed_strategy()
    num_ranks, rank = exchange.current().num_ranks, exchange.current().rank
    found = {}
    for budget_of in ("all", "rank"):
        table = ge.keyed_table(
            f"budget_of_{budget_of}", 2, initializer=tf.ones_initializer(), max_keys=MAX_KEYS,
            budget_of=budget_of, evict="least_frequent",
        )  # fmt: skip
        optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)))
        most = 0
        for batch in batches():
            ids = tf.RaggedTensor.from_tensor(batch[rank::num_ranks, None])
            with tf.GradientTape() as tape:
                (rows,) = ge.lookup_sparse([table], [ids], "sum")
                loss = tf.reduce_sum(rows)
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])
            most = max(most, int(table.total_count()))
        export = table.export(gather=True)
        rows = zip(export.keys.numpy(), export.freqs.numpy(), export.versions.numpy())
        kept = {int(key): (int(count), int(version)) for key, count, version in rows}
        found[budget_of] = (kept, most)
    return found


def test_ranks_keep_what_one_rank_keeps(several_ranks):
    oracle = BudgetedDict(max_keys=MAX_KEYS, evict="least_frequent", num_shares=24)
    for step, batch in enumerate(batches()):
        oracle.train(batch.tolist(), step)

    for found in several_ranks.run(train_on_rank):
        kept, _ = found["all"]
        assert len(kept) <= MAX_KEYS
        assert kept == content(oracle.rows)


def test_each_rank_has_a_budget(several_ranks):
    of_ranks = several_ranks.run(train_on_rank)

    for found in of_ranks:
        kept, most = found["rank"]
        assert most <= MAX_KEYS
        assert len(kept) <= MAX_KEYS * len(of_ranks)
    assert len(np.unique([len(found["rank"][0]) for found in of_ranks])) == 1


def hand_out_on_rank(folder):
    """The keys of this rank's rows, in the end."""
    ge.enable_distributed_strategy()
    num_ranks, rank = exchange.current().num_ranks, exchange.current().rank
    table = ge.keyed_table(
        "handed_out", 2, initializer=tf.ones_initializer(), max_keys=MAX_KEYS, budget_of="all",
        hand_out="rows",
    )  # fmt: skip
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)))
    for batch in batches():
        ids = tf.RaggedTensor.from_tensor(batch[rank::num_ranks, None])
        with tf.GradientTape() as tape:
            (rows,) = ge.lookup_sparse([table], [ids], "sum")
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        ge.hand_out_evicted([table], folder)
    return table.export().keys.numpy()


def test_each_rank_hands_out_what_it_had(several_ranks, tmp_path):
    kept = several_ranks.run(hand_out_on_rank, str(tmp_path))

    files = list((tmp_path / "handed_out").iterdir())
    assert {path.name[:6] for path in files} == {f"rank{r}-" for r in range(len(kept))}
    evicted = [key for path in files for key in np.load(path)["keys"]]
    # Keys may go, come back, and go again.
    seen = np.unique(np.concatenate(list(batches())))
    np.testing.assert_array_equal(np.unique([*evicted, *np.concatenate(kept)]), seen)
    assert len(evicted) > 10
