"""Tables with a budget or keys that expire, after a restart: the same keys go as in a run that goes
on."""

import numpy as np
import pytest
import tensorflow as tf
from variables.budget_tables import DIM, IN_TIERS, WITHOUT_DISK, found_in, make, trainer

import group_embedding as ge

EVENTS = 1_700_000_000  # seconds; the first minute that is said to tables


def save(tables, path, optimizer=None):
    return _checkpoint(tables, optimizer).save(str(path))


def restore(tables, path, optimizer=None):
    _checkpoint(tables, optimizer).restore(path).expect_partial()


def _checkpoint(tables, optimizer):
    named = {f"table_{i}": table for i, table in enumerate(tables)}
    return tf.train.Checkpoint(**named, **({} if optimizer is None else {"optimizer": optimizer}))


def rows(keys):
    return np.ones([len(keys), DIM], np.float32)


@pytest.mark.parametrize("tiers", IN_TIERS)
def test_minutes_go_on_at_the_time_that_was_said(tiers, tmp_path):
    # Given two tables whose keys live for an hour of their batches' time
    options = {"tiers": tiers, "evict_after_minutes": 60}
    tables = [make(name, **options) for name in ("user", "item")]
    for minute in range(5):
        for table, keys in zip(tables, ([minute, 10], [minute + 20])):
            table.set_time(EVENTS + 60 * minute)
            trainer(table)(keys)
    path = save(tables, tmp_path / "first")

    # When they are restored, and saved before a time is said
    again = [make(name, **options) for name in ("user_again", "item_again")]
    restore(again, path)
    save(again, tmp_path / "second")

    # Then no key has expired by the clock, and those of the first minute go an hour later
    assert [sorted(found_in(table)) for table in again] == [[0, 1, 2, 3, 4, 10], [*range(20, 25)]]
    for table in again:
        table.set_time(EVENTS + 60 * 61)
        assert int(table.evict()) == 1


@pytest.mark.parametrize("how", ["new optimizer", "tables alone", "start_from"])
@pytest.mark.parametrize("tiers", WITHOUT_DISK)
def test_steps_go_on_with_another_optimizer(tiers, how, tmp_path):
    # Given a full table that has been trained in 30 steps
    options = {"max_keys": 20, "budget_of": "rank", "keep_share": 0.8, "tiers": tiers}
    table = make("user", evict_after_steps=8, **options)
    train = trainer(table)
    for step in range(30):
        train([step % 16])

    # When another optimizer trains it, or what was saved of it
    path = save([table], tmp_path / "save")
    if how == "tables alone":
        table = make("restored", evict_after_steps=8, **options)
        restore([table], path)
    elif how == "start_from":
        start = {"start_from": path, "start_from_name": "user"}
        table = make("started", evict_after_steps=8, **start, **options)
    train = trainer(table)
    for step in range(6):
        train([100 + 2 * step, 101 + 2 * step])

    # Then new keys are the newest: older ones go for them, and expire
    assert sorted(key for key in found_in(table) if key >= 100) == list(range(100, 112))
    assert int(table.trained_steps) == 36
    table.evict()
    assert min(version for _, version in found_in(table).values()) >= 36 - 8


def test_steps_are_those_in_which_a_table_was_trained():
    # Given two tables of one optimizer, one of which is trained in few steps
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))
    rare, often = (make(name, evict_after_steps=2) for name in ("rare", "often"))
    optimizer.build([rare, often])
    train_rare, train_often = (trainer(table, optimizer) for table in (rare, often))
    train_rare([1, 2])

    # When the other is trained in 20 steps, and this one in three again
    for step in range(20):
        train_often([step])
    for key in (5, 6, 7):
        train_rare([key])

    # Then keys of either live for two steps of their own table
    assert (int(rare.evict()), int(often.evict())) == (3, 18)
    assert (sorted(found_in(rare)), sorted(found_in(often))) == ([6, 7], [18, 19])


@pytest.mark.parametrize("in_place", [False, True], ids=["new table", "in place"])
@pytest.mark.parametrize(
    "policy",
    [
        {"evict": "least_recent", "safe_steps": 3},
        {"evict": "decayed_frequency", "decay_steps": 2},
        {"evict": "least_frequent"},
    ],
    ids=lambda policy: policy["evict"],
)
@pytest.mark.parametrize("tiers", IN_TIERS)
def test_rows_that_are_inserted_after_a_restart_find_the_same_places(
    tiers, policy, in_place, tmp_path
):
    # Given a full table, and one that was restored from its save
    options = {"max_keys": 20, "budget_of": "rank", "keep_share": 0.5, "tiers": tiers, **policy}
    table = make("user", hand_out="keys", **options)
    train = trainer(table)
    for keys in (list(range(10)) * 4, *[[50]] * 8, list(range(10, 19)) * 2, *[[50]] * 4):
        train(keys)
    path = save([table], tmp_path / "save", train.optimizer)
    again = make("again", hand_out="keys", **options)
    if in_place:  # beyond what was saved: more steps, and keys that went
        others = trainer(again)
        for step in range(40):
            others([step, 50])
    restore([again], path, trainer(again).optimizer)
    assert len(again.take_evicted().keys) == 0

    # When both are given rows before the next step
    step, keys = int(table.trained_steps), list(range(100, 105))
    for of in (table, again):
        of.insert(keys, rows(keys), versions=[step] * 5, freqs=[3] * 5)

    # Then the same keys have gone, and the same ones go as both train on
    assert found_in(again) == found_in(table)
    for of in (table, again):
        trainer(of)(list(range(200, 216)))
    assert found_in(again) == found_in(table)


SMALL = 30


@pytest.mark.parametrize("keep_share", [1.0, 0.5])
@pytest.mark.parametrize("tiers", IN_TIERS)
def test_a_smaller_budget_keeps_what_one_insertion_would(tiers, keep_share, tmp_path):
    # Given 10,000 keys whose steps are in no order
    of_all = {"evict_after_steps": 10**9}
    table = make("large", **of_all)
    keys = np.arange(10_000)
    versions = np.random.default_rng(0).permutation(10_000)
    table.insert(keys, rows(keys), versions=versions)
    path = save([table], tmp_path / "save")

    # When a table with a budget of 60 restores them
    small = make("small", max_keys=60, budget_of="rank", keep_share=keep_share, tiers=tiers)
    restore([small], path)

    # Then it has the newest of all, and the others are counted
    num_kept = int(60 * keep_share)
    newest = np.argsort(versions)[-num_kept:]
    assert sorted(found_in(small)) == sorted(newest.tolist())
    assert int(small.budget_counts().without_place) == 10_000 - num_kept
    assert int(small.budget_counts().evicted) == 0


@pytest.mark.parametrize("tiers", IN_TIERS)
def test_a_smaller_budget_restores_changes_as_a_full_save(tiers, tmp_path):
    # Given a table of 60 keys that was saved, of which half are erased and one is trained
    options = {"budget_of": "rank", "keep_share": 1.0}
    table = make("large", max_keys=100, **options)
    train = trainer(table)
    train(range(60))
    checkpoint = tf.train.Checkpoint(table_0=table, optimizer=train.optimizer)
    checkpoint.save(str(tmp_path / "full"))
    table.erase(list(range(30, 60)))
    train([3])

    # When it is saved by its changes, and in full, and tables of 30 and 20 keys restore both
    changes = ge.checkpoint.save_changes(checkpoint, str(tmp_path / "changes"))
    full = checkpoint.save(str(tmp_path / "full_again"))
    found = {}
    for max_keys in (30, 20):
        for path in (changes, full):
            small = make(f"of_{max_keys}", max_keys=max_keys, tiers=tiers, **options)
            restore([small], path)
            found.setdefault(max_keys, []).append(found_in(small))

    # Then both give the same keys
    assert [sorted(keys) for keys in found[30]] == [list(range(30))] * 2
    assert found[20][0] == found[20][1] and len(found[20][0]) == 20 and 3 in found[20][0]


@pytest.mark.parametrize("tiers", IN_TIERS)
def test_a_smaller_budget_keeps_new_keys_that_are_safe(tiers, tmp_path):
    # Given 20 keys that were trained often, and 20 of the last step
    options = {"budget_of": "rank", "keep_share": 1.0, "evict": "least_frequent", "safe_steps": 3}
    table = make("large", max_keys=40, **options)
    train = trainer(table)
    for _ in range(5):
        train(range(20))
    train(range(20, 40))
    path = save([table], tmp_path / "save")

    # When tables for 25 and for 15 restore them
    kept = {}
    for max_keys in (25, 15):
        small = make(f"of_{max_keys}", max_keys=max_keys, tiers=tiers, **options)
        restore([small], path)
        kept[max_keys] = sorted(found_in(small))

    # Then the new ones stay, as many as there are places for
    assert kept[25][5:] == list(range(20, 40)) and len(kept[25]) == 25
    assert len(kept[15]) == 15 and min(kept[15]) >= 20


@pytest.mark.parametrize("tiers", [param for param in WITHOUT_DISK if len(param.values[0]) == 1])
def test_a_restore_that_is_refused_leaves_the_keys(tiers, tmp_path):
    # Given a table that is full by its bytes, and a checkpoint of it with two slots more
    options = {"tiers": tiers, "budget_of": "rank"}
    other = make("other", tiers=tiers)
    train = trainer(other, ge.optimizers.wrap(tf.keras.optimizers.Adam(0.1)))
    train([1, 2, 3])
    path = save([other], tmp_path / "save")
    table = make("full", max_bytes=40 << 20, **options)
    max_keys = int(table.budget_counts().max_keys)
    trainer(table, ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)))(range(max_keys))

    # When it is to restore that
    with pytest.raises(tf.errors.OpError, match="table 'full', slots of the checkpoint: expected"):
        restore([table], path)

    # Then it has all its keys
    assert int(table.total_count()) == max_keys
