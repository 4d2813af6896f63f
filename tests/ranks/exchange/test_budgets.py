"""Budgets of tables whose keys are spread over ranks."""

import re

import numpy as np
import pytest
import tensorflow as tf
from support.oracles.budget import BudgetedDict, content, owner_of, zipf_batches

import group_embedding as ge
from group_embedding import exchange

MAX_KEYS, NUM_STEPS, BATCH = 120, 12, 24


def batches():
    return zipf_batches(seed=13, num_batches=NUM_STEPS, size=BATCH, num_keys=400)


def train_on_rank(tiers=("dram",)):
    """{budget_of: ({key: (count, version)} of all ranks, the most keys that this rank had)}."""
    ge.enable_distributed_strategy()
    num_ranks, rank = exchange.current().num_ranks, exchange.current().rank
    found = {}
    for budget_of in ("all", "rank"):
        table = ge.keyed_table(
            f"budget_of_{budget_of}", 2, initializer=tf.ones_initializer(), max_keys=MAX_KEYS,
            budget_of=budget_of, evict="least_frequent", tiers=tiers,
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


def assert_ranks_keep_what_one_rank_keeps(of_ranks):
    oracle = BudgetedDict(max_keys=MAX_KEYS, evict="least_frequent", num_shares=24)
    for step, batch in enumerate(batches()):
        oracle.train(batch.tolist(), step)
    for found in of_ranks:
        kept, _ = found["all"]
        assert len(kept) <= MAX_KEYS
        assert kept == content(oracle.rows)


def test_ranks_keep_what_one_rank_keeps_and_each_has_a_budget(several_ranks):
    of_ranks = several_ranks.run(train_on_rank)

    assert_ranks_keep_what_one_rank_keeps(of_ranks)
    for found in of_ranks:
        kept, most = found["rank"]
        assert most <= MAX_KEYS
        assert len(kept) <= MAX_KEYS * len(of_ranks)
    assert len(np.unique([len(found["rank"][0]) for found in of_ranks])) == 1


def score_of(keys):
    return keys * 37 % 101


def minute_of(step):
    return 1_000_000 + 7 * step % 5  # of events, which come in any order


def train_in_order(evict):
    """{key: (count, version)} of all ranks, of a table that evicts by what its user gives."""
    ge.enable_distributed_strategy()
    num_ranks, rank = exchange.current().num_ranks, exchange.current().rank
    table = ge.keyed_table(
        f"in_order_of_{evict}", 2, initializer=tf.ones_initializer(), max_keys=MAX_KEYS,
        budget_of="all", evict=evict,
    )  # fmt: skip
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)))
    for step, batch in enumerate(batches()):
        ids = tf.constant(batch[rank::num_ranks])
        if evict == "earliest":
            table.set_time(60 * minute_of(step))
        with tf.GradientTape() as tape:
            (rows,) = ge.lookup([table], [ids])
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        if evict == "score":
            table.set_scores(ids, score_of(ids))
    keys, _, versions, counts = (of.numpy().tolist() for of in table.export(gather=True))
    return dict(zip(keys, zip(counts, versions)))


@pytest.mark.parametrize("evict", ["score", "earliest"])
def test_ranks_keep_what_one_rank_keeps_by_given_scores_or_times(several_ranks, evict):
    # Given a dict of all keys, and each batch's scores or time
    oracle = BudgetedDict(max_keys=MAX_KEYS, evict=evict, num_shares=24)
    for step, batch in enumerate(batches()):
        oracle.minute = minute_of(step)
        oracle.train(batch.tolist(), step)
        for key in set(batch.tolist()) & oracle.rows.keys():
            oracle.rows[key].score = score_of(key)
    # When each rank gives scores of its own ids, or the time of the batch
    # Then all ranks together keep the dict's keys
    for kept in several_ranks.run(train_in_order, evict):
        assert kept == content(oracle.rows)
    assert len(oracle.evicted) > 10


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


NUM_PLACED = 30  # keys of a budget, so that each of two ranks evicts


def train_in_placement(placement, budget_of):
    """({key: (count, version)} and {key: row} of all ranks, the keys that this rank has, those that
    it handed out), of a table whose samples have two ids."""
    ge.enable_distributed_strategy()
    num_ranks, rank = exchange.current().num_ranks, exchange.current().rank
    table = ge.keyed_table(
        f"placed_{placement.replace(':', '_')}_{budget_of}", 2, initializer=tf.ones_initializer(),
        max_keys=NUM_PLACED, budget_of=budget_of, evict="least_frequent", hand_out="keys",
        placement=placement,
    )  # fmt: skip
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))
    handed_out = []
    for batch in batches():
        samples = batch[rank::num_ranks].reshape(-1, 2)
        with tf.GradientTape() as tape:
            (rows,) = ge.lookup_sparse([table], [tf.RaggedTensor.from_tensor(samples)], "sum")
            loss = tf.reduce_sum(rows**2)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        handed_out += table.take_evicted().keys.numpy().tolist()
    keys, rows, versions, counts = (of.numpy().tolist() for of in table.export(gather=True))
    kept = dict(zip(keys, zip(counts, versions)))
    return kept, dict(zip(keys, rows)), table.export().keys.numpy().tolist(), handed_out


def train_dicts(dicts, dict_of, num_ranks):
    """{key: row} of one process with the whole batch, whose keys are in several budgets."""
    rows, squares = {}, {}
    for step, batch in enumerate(batches()):
        gradients = {key: np.zeros(2) for key in batch.tolist()}
        for sample in (batch[r::num_ranks].reshape(-1, 2).tolist() for r in range(num_ranks)):
            for keys in sample:
                total = sum(rows.get(key, np.ones(2)) for key in keys)
                for key in keys:
                    gradients[key] += 2 * total / num_ranks  # ranks average
        for number, of in enumerate(dicts):
            of.train([key for key in batch.tolist() if dict_of(key) == number], step)
        kept = set().union(*(of.rows for of in dicts))
        rows = {key: rows.get(key, np.ones(2)) for key in kept}
        squares = {key: squares.get(key, np.full(2, 0.1)) for key in kept}
        for key in kept & gradients.keys():
            squares[key] = squares[key] + gradients[key] ** 2
            rows[key] = rows[key] - 0.1 * gradients[key] / np.sqrt(squares[key] + 1e-7)
    return rows


@pytest.mark.parametrize("budget_of", ["all", "rank"])
@pytest.mark.parametrize(
    "placement",
    [
        "distributed",
        "distributed:sums",
        "distributed:two_levels",
        "localized:1",
        "localized:1:sums",
        "localized:1:two_levels",
    ],
)
def test_a_budget_in_each_placement(two_ranks, placement, budget_of):
    # Given a dict with the budget of all ranks, or one for each rank that has keys
    is_spread = placement.startswith("distributed")
    num_dicts = 2 if is_spread and budget_of == "rank" else 1
    num_shares = 24 if budget_of == "all" else 0
    dicts = [
        BudgetedDict(max_keys=NUM_PLACED, evict="least_frequent", num_shares=num_shares)
        for _ in range(num_dicts)
    ]
    expected = train_dicts(dicts, lambda key: owner_of(key, num_dicts), num_ranks=2)
    # When two ranks train a table in the placement
    of_ranks = two_ranks.run(train_in_placement, placement, budget_of)
    # Then the same keys are left, with their rows
    for kept, rows, _, _ in of_ranks:
        assert kept == {k: v for of in dicts for k, v in content(of.rows).items()}
        for key, row in rows.items():
            np.testing.assert_allclose(row, expected[key], rtol=1e-5, err_msg=key)
    # And each rank has and handed out its own ones, and each evicts
    evicted = [key for of in dicts for key in of.evicted]
    assert sorted(of_ranks[0][3] + of_ranks[1][3]) == sorted(evicted)
    for rank, (_, _, own, handed_out) in enumerate(of_ranks):
        owners = {owner_of(key, 2) if is_spread else 1 for key in [*own, *handed_out]}
        assert owners <= {rank}
        assert len(handed_out) > 3 or (rank == 0 and not is_spread)


def train_steps(steps, folder, restore_from=None):
    """(path of a checkpoint after these steps, {key: (count, version)} of all ranks)."""
    ge.enable_distributed_strategy()
    num_ranks, rank = exchange.current().num_ranks, exchange.current().rank
    table = ge.keyed_table(
        "restarted", 2, initializer=tf.ones_initializer(), max_keys=MAX_KEYS, budget_of="all",
        evict="least_frequent", safe_steps=2,
    )  # fmt: skip
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))
    checkpoint = tf.train.Checkpoint(table=table, optimizer=optimizer)
    if restore_from is not None:
        checkpoint.read(restore_from)
    for batch in list(batches())[steps]:
        ids = tf.RaggedTensor.from_tensor(batch[rank::num_ranks, None])
        with tf.GradientTape() as tape:
            (rows,) = ge.lookup_sparse([table], [ids], "sum")
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    path = checkpoint.write(f"{folder}/of_rank_{rank}")
    keys, _, versions, counts = (of.numpy().tolist() for of in table.export(gather=True))
    return path, dict(zip(keys, zip(counts, versions)))


@pytest.mark.parametrize("saved_by, restored_by", [(1, 3), (2, 3), (3, 2), (3, 1)])
def test_other_ranks_go_on_as_those_that_saved(request, tmp_path, saved_by, restored_by):
    # Given a budget of all ranks that was trained for half of the steps, and saved
    def run(num_ranks, *args):
        if num_ranks == 1:
            return [train_steps(*args)]
        fixture = {2: "two_ranks", 3: "three_ranks"}[num_ranks]
        return request.getfixturevalue(fixture).run(train_steps, *args)

    half = NUM_STEPS // 2
    path, saved = run(saved_by, slice(half), str(tmp_path))[0]
    assert len(saved) > MAX_KEYS / 2
    # When another number of ranks restores it and trains the rest
    folder = tmp_path / "again"
    folder.mkdir()
    of_ranks = run(restored_by, slice(half, NUM_STEPS), str(folder), path)
    # Then the keys are those of a dict that was trained without a break
    oracle = BudgetedDict(MAX_KEYS, evict="least_frequent", safe_steps=2, num_shares=24)
    for step, batch in enumerate(batches()):
        oracle.train(batch.tolist(), step)
    assert len(oracle.evicted) > 10
    for _, kept in of_ranks:
        assert kept == content(oracle.rows)


def train_within_bytes(max_bytes):
    """(How many keys this rank may have, has and evicted, the most bytes it took, its keys.)"""
    ge.enable_distributed_strategy()
    num_ranks, rank = exchange.current().num_ranks, exchange.current().rank
    table = ge.keyed_table(
        "bytes_of_all", 2, initializer=tf.ones_initializer(), num_initial_rows=1,
        max_bytes=max_bytes, budget_of="all", keep_share=0.8,
    )  # fmt: skip
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)))
    max_keys, most = int(table.budget_counts().max_keys), 0
    size = max_keys // 3  # ids of each rank
    for step in range(6):
        ids = tf.range(size, dtype=tf.int64) + (step * num_ranks + rank) * size
        with tf.GradientTape() as tape:
            (rows,) = ge.lookup([table], [ids])
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        most = max(most, int(table.memory_bytes()))
    evicted = int(table.budget_counts().evicted)
    return max_keys, int(table.total_count()), evicted, most, table.export().keys.numpy()


def make_too_small(max_bytes):
    """The error of a table whose budget is too small."""
    ge.enable_distributed_strategy()
    try:
        ge.keyed_table("too_small", 2, max_bytes=max_bytes, budget_of="all")
    except tf.errors.ResourceExhaustedError as error:
        return str(error)
    return None


def test_bytes_of_all_ranks_that_are_too_few(two_ranks):
    # When ranks share a budget in which no table fits
    errors = two_ranks.run(make_too_small, 30 << 20)
    # Then each says what a rank has, and what it takes
    for error in errors:
        assert f"for at least 12 keys, got max_bytes={15 << 20} for each of 2 ranks" in error
    enough = int(re.search(r"raise it to at least (\d+) for each", errors[0]).group(1))
    assert two_ranks.run(make_too_small, 2 * enough) == [None, None]


def test_bytes_of_all_ranks(several_ranks):
    # When ranks share a budget of bytes, in which two batches fit
    max_bytes = 80 << 20
    of_ranks = several_ranks.run(train_within_bytes, max_bytes)
    # Then each rank has its part of the bytes at most, and evicts
    (max_keys,) = {of[0] for of in of_ranks}
    for _, num_keys, evicted, most, _ in of_ranks:
        assert max_keys / 2 < num_keys <= max_keys
        assert evicted > 0.8 * max_keys
        assert 20 * num_keys < most <= max_bytes / len(of_ranks)
    # And the keys of the last batch are there
    last = np.arange(5 * len(of_ranks) * (max_keys // 3), 6 * len(of_ranks) * (max_keys // 3))
    assert np.isin(last, np.concatenate([of[4] for of in of_ranks])).all()
