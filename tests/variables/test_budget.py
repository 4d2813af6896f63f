"""Tables of keys with a budget, trained by wrapped optimizers: against a dict that sorts keys."""

import re

import numpy as np
import pytest
import tensorflow as tf
from support.oracles.budget import BudgetedDict, content, zipf_batches
from variables.budget_tables import (
    DIM,
    IN_TIERS,
    WITH_DISK,
    WITHOUT_DISK,
    found_in,
    make,
    trainer,
)

import group_embedding as ge


@pytest.mark.parametrize("tiers", IN_TIERS)
@pytest.mark.parametrize(
    "policy",
    [
        {"evict": "least_recent"},
        {"evict": "least_frequent", "safe_steps": 2},
        {"evict": "decayed_frequency", "decay_steps": 3},
    ],
    ids=lambda policy: policy["evict"],
)
def test_the_lowest_go(tiers, policy):
    compare_with_a_dict(tiers, policy)


def compare_with_a_dict(tiers, policy):
    table = make(tiers=tiers, max_keys=80, budget_of="rank", keep_share=0.8, **policy)
    oracle = BudgetedDict(max_keys=80, keep=0.8, **policy)
    train = trainer(table)

    for step, batch in enumerate(zipf_batches(seed=9, num_batches=25, size=20, num_keys=300)):
        train(batch)
        oracle.train(batch.tolist(), step)
        assert found_in(table) == content(oracle.rows)

    counts = table.budget_counts()
    assert int(counts.max_keys) == 80
    assert int(counts.evicted) == len(oracle.evicted) > 50


@pytest.mark.parametrize("tiers", WITHOUT_DISK)
def test_a_budget_of_bytes_is_one_of_as_many_keys(tiers):
    # Given a table with a budget of bytes, and one in host memory of the keys that these are
    table = make(tiers=tiers, max_bytes=40 << 20, budget_of="rank", keep_share=0.8)
    train = trainer(table)
    train([0])  # makes the optimizer's slot, which takes bytes, too
    max_keys = int(table.budget_counts().max_keys)
    of_keys = make("keys", max_keys=max_keys, budget_of="rank", keep_share=0.8)
    train_of_keys = trainer(of_keys)
    train_of_keys([0])

    # When both train the same keys, at last more new ones than there are places
    batches = [
        np.random.default_rng(step).integers(0, max_keys, max_keys // 3) + step * max_keys // 4
        for step in range(8)
    ]
    for batch in [*batches, np.arange(2 * max_keys) + 9 * max_keys]:
        read, expected = train(batch), train_of_keys(batch)

        # Then the keys read the same, and both have the same ones, within the bytes
        np.testing.assert_allclose(read, expected, rtol=1e-5, atol=1e-5)
        assert int(table.total_count()) <= max_keys
        assert int(table.memory_bytes()) <= 40 << 20
    assert found_in(table) == found_in(of_keys)
    counts, counts_of_keys = (
        [int(count) for count in of.budget_counts()] for of in (table, of_keys)
    )
    assert counts == counts_of_keys
    assert int(table.budget_counts().evicted) > max_keys
    assert max_keys > 10_000


@pytest.mark.parametrize("tiers", WITH_DISK)
def test_a_budget_of_bytes_has_rows_on_disk(tiers):
    # Given a table whose keys do not all fit into memory, and one in host memory of as many keys
    options = {"budget_of": "rank", "keep_share": 0.8}
    sizes = {"max_bytes": 80 << 20, "tier_bytes": [2 << 20] * (len(tiers) - 1)}
    table = make(tiers=tiers, **sizes, **options)
    train = trainer(table)
    train([0])  # makes the optimizer's slot
    max_keys = int(table.budget_counts().max_keys)
    of_keys = make("keys", max_keys=max_keys, **options)
    train_of_keys = trainer(of_keys)
    train_of_keys([0])

    # When keys pass through both, some of which come again
    size = max_keys // 20
    for step in range(26):
        keys = np.arange(2 * size) + step * size
        np.testing.assert_allclose(train(keys), train_of_keys(keys), rtol=1e-5, atol=1e-5)

    # Then they have the same ones
    assert found_in(table) == found_in(of_keys)
    assert int(table.budget_counts().evicted) == int(of_keys.budget_counts().evicted) > max_keys / 9
    assert max_keys > 20_000


@pytest.mark.parametrize("tiers", IN_TIERS)
@pytest.mark.parametrize("expected_keys", [None, 1000], ids=["counters", "bloom"])
def test_a_filter_beside_a_budget(tiers, expected_keys):
    # Given a table with a filter in these tiers, and one without tiers in host memory
    options = {
        "max_keys": 60, "budget_of": "rank", "evict": "least_frequent", "admit_after": 2,
        "expected_keys": expected_keys, "value_before_admission": 3.0,
    }  # fmt: skip
    tables = [
        make("tiered", tiers=tiers, **options),
        make("plain", **options),
    ]
    trainers = [trainer(table) for table in tables]

    # When both train the same batches
    for batch in zipf_batches(seed=7, num_batches=40, size=24, num_keys=300):
        read, expected = (train(batch) for train in trainers)

        # Then they read the same, and have the same keys
        np.testing.assert_allclose(read, expected, rtol=1e-5)
        assert found_in(tables[0]) == found_in(tables[1])
    counts, expected = ([int(n) for n in table.budget_counts()] for table in tables)
    assert counts == expected
    assert int(tables[0].budget_counts().evicted) > 10


def test_the_lowest_scores_go():
    table = make(max_keys=10, budget_of="rank", keep_share=0.5, evict="score")
    train = trainer(table)
    train(range(10))
    table.set_scores(tf.range(10), tf.constant([5, 4, 3, 2, 1, 9, 8, 7, 6, 0], tf.float32))

    train([100])

    assert sorted(found_in(table)) == [0, 5, 6, 7, 8, 100]


def test_scores_and_times_are_given_in_a_session():
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        # Given a graph's table that evicts by score and by time
        table = make(
            max_keys=10, budget_of="rank", keep_share=0.5, evict="score", evict_after_minutes=10
        )
        keys, seconds = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.int64, [])
        (rows,) = ge.lookup([table], [keys])
        optimizer = ge.optimizers.wrap(v1.train.GradientDescentOptimizer(0.1))
        train = optimizer.minimize(tf.reduce_sum(rows))
        set_scores = table.set_scores(keys, tf.cast(3 * keys % 10, tf.float32))
        set_time, evict, export = table.set_time(seconds), table.evict(), table.export()
        session.run(v1.global_variables_initializer())
        # When keys are trained, get their scores, and give place to another
        session.run(set_time, {seconds: 60_000_000})
        for run in (train, set_scores):
            session.run(run, {keys: range(10)})
        session.run(train, {keys: [100]})
        # Then those with the highest scores are left, until ten minutes have passed
        assert sorted(session.run(export).keys) == [2, 3, 5, 6, 9, 100]
        session.run(set_time, {seconds: 60_000_000 + 11 * 60})
        assert session.run(evict) == 6


@pytest.mark.parametrize("tiers", WITH_DISK)
def test_prefetched_rows_change_nothing_of_what_goes(tiers):
    # Given two tables with a budget, most of whose rows are below the first tier
    tables = [
        make(name, tiers, max_keys=300, budget_of="rank", evict="least_frequent")
        for name in ("plain", "prefetched")
    ]
    trainers = [trainer(table) for table in tables]
    batches = zipf_batches(seed=17, num_batches=30, size=40, num_keys=900, exponent=0.6)
    for batch, following in zip(batches, [*batches[1:], batches[0]]):
        # When both train the same batches, and the rows of one come up a batch ahead
        for train in trainers:
            train(batch)
        ge.route_ids(tables[1:], [tf.constant(following)])
        # Then the same keys are left
        assert found_in(tables[0]) == found_in(tables[1])
    assert int(tables[0].budget_counts().evicted) > 100


def test_keys_without_a_place_read_what_they_start_as():
    table = make(max_keys=30, budget_of="rank", hand_out="rows")
    train = trainer(table)

    first, second = train(range(100)), train(range(100))

    np.testing.assert_array_equal(first, np.ones([100, DIM]))
    trained = second[:, 0] != 1
    assert trained.sum() == 30  # those that had a place have been trained since
    assert int(table.total_count()) == 30
    assert int(table.budget_counts().without_place) == 140


def test_evicted_rows_are_handed_out():
    table = make(max_keys=16, budget_of="rank", keep_share=0.5, hand_out="rows")
    train = trainer(table)
    train(range(16))
    expected = ge.lookup([table], [tf.range(8, dtype=tf.int64)])[0].numpy()
    train(range(8, 16))

    train(range(100, 108))
    keys, values, versions, freqs = table.take_evicted()

    order = np.argsort(keys)
    np.testing.assert_array_equal(keys.numpy()[order], range(8))
    np.testing.assert_array_equal(values.numpy()[order], expected)
    assert set(versions.numpy()) == {0} and set(freqs.numpy()) == {1}
    assert len(table.take_evicted().keys) == 0


@pytest.mark.parametrize("tiers", IN_TIERS)
def test_a_checkpoint_in_the_middle_changes_nothing(tiers, tmp_path):
    policy = {"evict": "least_frequent", "safe_steps": 3}
    options = {"max_keys": 60, "budget_of": "all", **policy}
    batches = zipf_batches(seed=4, num_batches=24, size=16, num_keys=200)
    kept = []
    for is_restarted in (False, True):
        table = make(tiers=tiers, **options)
        train = trainer(table)
        for batch in batches[:12]:
            train(batch)
        if is_restarted:
            saved = tf.train.Checkpoint(table=table, optimizer=train.optimizer)
            path = saved.save(str(tmp_path / "save"))
            table = make(name="again", tiers=tiers, **options)
            train = trainer(table)
            tf.train.Checkpoint(table=table, optimizer=train.optimizer).restore(path)
        for batch in batches[12:]:
            train(batch)
        kept.append(found_in(table))

    assert kept[0] == kept[1]


@pytest.mark.parametrize("tiers", IN_TIERS)
def test_the_clock_evicts_by_minutes(tiers, tmp_path):
    # Given keys in all tiers, some of which were trained again after eight minutes
    table = make(tiers=tiers, evict_after_minutes=10)
    train = trainer(table)
    for minutes, keys in [(0, range(240)), (8, range(180, 300))]:
        table.set_time(60_000_000 + minutes * 60)
        for first in keys[::30]:
            train(range(first, first + 30))

    # When eleven minutes have passed, Then the others go
    table.set_time(60_000_000 + 11 * 60)
    assert int(table.evict()) == 180
    assert sorted(found_in(table)) == list(range(180, 300))

    # And those that are left go with a save after thirty
    table.set_time(60_000_000 + 30 * 60)
    tf.train.Checkpoint(table=table).save(str(tmp_path / "save"))
    assert found_in(table) == {}


@pytest.mark.parametrize("tiers", IN_TIERS)
def test_several_policies_of_one_table(tiers):
    table = make(tiers=tiers, evict_after_steps=2, evict_after_minutes=10, evict_below_norm=1.0)
    table.set_time(60_000_000)
    trainer(table)([0])
    table.insert([1, 2, 3], [[9.0] * DIM, [9.0] * DIM, [0.1] * DIM], versions=[9, 1, 9])

    assert int(table.evict(step=9)) == 3  # 0 and 2 by their steps, 3 by its norm

    assert sorted(found_in(table)) == [1]


def test_chance_admits_the_same_keys_again():
    admitted = []
    for name in ("a", "b"):
        table = make(name=name, admit_probability=0.3)
        train = trainer(table)
        shares = []
        for _ in range(3):
            train(range(3000))
            shares.append(int(table.total_count()) / 3000)
        admitted.append(sorted(found_in(table)))

        np.testing.assert_allclose(shares, [0.3, 0.51, 0.657], atol=0.03)
    assert admitted[0] == admitted[1]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_keys": 5}, "expected budget_of to be one of 'rank', 'all', got None"),
        ({"max_keys": 0, "budget_of": "rank"}, "expected max_keys to be"),
        ({"max_keys": 9, "max_bytes": 9, "budget_of": "rank"}, "max_keys or max_bytes, got both"),
        ({"evict": "score"}, "expected max_keys or max_bytes, as evict is given"),
        ({"keep_share": 1.5}, "expected keep_share from 1e-6 to 1"),
        ({"max_keys": 9, "budget_of": "all", "evict": "lru"}, "expected evict to be one of"),
        (
            {"max_keys": 9, "budget_of": "rank", "decay_steps": 3},
            "expected evict='decayed_frequency', as decay_steps is given",
        ),
        ({"admit_probability": 0}, "expected admit_probability"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=f"table 'user'.*{message}"):
        make(**options)


def test_a_budget_too_small_is_refused():
    with pytest.raises(tf.errors.ResourceExhaustedError, match="a budget for at least 24 keys"):
        make(max_keys=20, budget_of="all")
    with pytest.raises(tf.errors.ResourceExhaustedError, match="a budget for at least 1 keys"):
        make(max_bytes=1 << 20, budget_of="rank")


@pytest.mark.parametrize("tiers", IN_TIERS)
def test_a_budget_that_is_too_small_says_what_it_takes(tiers):
    # Given a Bloom filter that alone takes more than the budget, and slots of the table's own
    options = {
        "tiers": tiers, "budget_of": "rank", "admit_after": 2, "expected_keys": 10**7,
        "counter_bits": 16, "evict": "score", "safe_steps": 2, "evict_after_minutes": 5,
    }  # fmt: skip
    expected = r"table 'user': expected a budget for at least 1 keys, got max_bytes=67108864; "
    with pytest.raises(tf.errors.ResourceExhaustedError, match=expected) as error:
        make(max_bytes=64 << 20, **options)

    # When it has the bytes that the error names
    found = re.search(r"to at least (\d+), as .* without keys takes (\d+)", str(error.value))
    enough, without_keys = map(int, found.groups())
    assert 64 << 20 < without_keys < enough
    table = make(max_bytes=enough, **options)

    # Then it has a key, and few bytes less are refused again
    assert int(table.budget_counts().max_keys) == 1
    with pytest.raises(tf.errors.ResourceExhaustedError, match=f"raise it to at least {enough},"):
        make(max_bytes=enough - 2, **options)


def test_scores_and_times_need_a_table_that_has_them():
    table = make()
    with pytest.raises(tf.errors.InvalidArgumentError, match="make it with evict='score'"):
        table.set_scores([1], [1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="evict_after_minutes"):
        table.set_time(1)
