"""Keys admitted by chance, beside the other filters and a budget, against a dict that draws the
same numbers."""

import numpy as np
import pytest
import tensorflow as tf
from support.oracles.budget import FilteredDict, content, zipf_batches
from variables.budget_tables import IN_TIERS, found_in, make, trainer

SHARE, UNSEEN = 0.4, 3.0
BEFORE = {"admit_probability": SHARE, "value_before_admission": UNSEEN}
BLOOM = {"expected_keys": 20_000, "early_share": 1e-4}
STREAM = zipf_batches(seed=5, num_batches=20, size=24, num_keys=70, exponent=0.6)
MAX_KEYS = 30
FILTERS = [
    pytest.param({}, id="chance"),
    pytest.param({"admit_after": 3}, id="counter"),
    pytest.param({"admit_after": 3, **BLOOM}, id="bloom"),
    pytest.param(BLOOM, id="bloom of chance"),
]


def dict_of(options, max_keys=10**6, **budget):
    """With the filter that a table has of these options."""
    return FilteredDict(
        min_count=options.get("admit_after", 0), probability=SHARE,
        is_bloom="expected_keys" in options, max_keys=max_keys, **budget,
    )  # fmt: skip


@pytest.mark.parametrize("tiers", IN_TIERS)
@pytest.mark.parametrize("options", FILTERS)
def test_the_key_and_its_count_decide(tiers, options):
    # Given a table that admits by chance, and a dict
    table = make(tiers=tiers, **BEFORE, **options)
    train, oracle = trainer(table), dict_of(options)

    # When both train keys, some of them several times in a batch
    for step, batch in enumerate(STREAM):
        is_seen = np.array([key in oracle.rows for key in batch.tolist()])
        read = train(batch)
        oracle.train(batch.tolist(), step)

        # Then they have the same keys, and those without a row read the constant
        counts = {key: count for key, (count, _) in found_in(table).items()}
        assert counts == {key: row.count for key, row in oracle.rows.items()}
        np.testing.assert_array_equal(np.all(read == UNSEEN, axis=1), ~is_seen)
    assert len(oracle.rows) > 40 and len(oracle.counts) > 5


@pytest.mark.parametrize("restarts", [{}, {7: ("dram",), 14: None}], ids=["goes on", "restarted"])
@pytest.mark.parametrize("tiers", IN_TIERS)
@pytest.mark.parametrize("options", FILTERS)
def test_chance_beside_a_budget(tiers, options, restarts, tmp_path):
    # Given a table that admits by chance and has a budget, and a dict with both
    budget = {"max_keys": MAX_KEYS, "evict": "least_recent"}
    both = {"budget_of": "rank", **budget, **BEFORE, **options}
    table = make(tiers=tiers, **both)
    train, oracle = trainer(table), dict_of(options, **budget)

    # When both train more keys than it has places, and the table moves to host memory and back
    for step, batch in enumerate(STREAM):
        if step in restarts:
            saved = tf.train.Checkpoint(table=table, optimizer=train.optimizer)
            path = saved.save(str(tmp_path / f"save_{step}"))
            table = make(f"from_{step}", restarts[step] or tiers, **both)
            train = trainer(table)
            tf.train.Checkpoint(table=table, optimizer=train.optimizer).restore(path)
        train(batch)
        oracle.train(batch.tolist(), step)

        # Then the same keys are admitted, and the same ones go
        assert found_in(table) == content(oracle.rows)
    assert len(oracle.evicted) >= 10


@pytest.mark.parametrize("tiers", IN_TIERS)
@pytest.mark.parametrize("options", [{}, BLOOM], ids=["counter", "bloom"])
@pytest.mark.parametrize("admit_after, share", [(0, 0.2), (3, 0.2), (3, 0.9)])
def test_the_share_that_is_admitted(tiers, options, admit_after, share):
    # Given a table with as many places as keys
    if len(tiers) > 1:
        options = {"tier_bytes": [1 << 20] * (len(tiers) - 1), **options}
    table = make(
        tiers=tiers, max_keys=2000, budget_of="rank", admit_after=admit_after,
        admit_probability=share, **options,
    )  # fmt: skip
    train = trainer(table)

    # When all keys are trained once more
    for count in range(1, 6):
        train(range(2000))

        # Then none is admitted too early, and afterwards the share that as many draws give
        admitted = int(table.total_count()) / 2000
        expected = 1 - (1 - share) ** count if count >= admit_after else 0
        assert admitted == pytest.approx(expected, abs=0.035 * (expected > 0))


@pytest.mark.parametrize("tiers", IN_TIERS)
def test_the_counters_of_a_bloom_filter_that_are_full_admit(tiers):
    # Given counters of 8 bits, and a probability at which most keys would wait for longer
    options = {**BLOOM, "counter_bits": 8, "admit_probability": 1e-4}
    table = make(tiers=tiers, **options)
    train = trainer(table)

    # When keys are trained 254 times
    train(np.repeat(np.arange(20), 254))

    # Then hardly one is admitted, and all of them once more admits
    assert int(table.total_count()) < 4
    train(range(20))
    assert sorted(found_in(table)) == list(range(20))
