"""Keys that a trainer evicts are nowhere in every replica that has the next version."""

import contextlib
import itertools
import time

import numpy as np
import pytest
import tensorflow as tf
from support.cases.shop_models import version_folder
from support.session.folders import make_folder

import group_embedding as ge
from group_embedding.serving import InferenceSession, Publisher

KEYS = np.arange(40)
KEPT = KEYS[::4]
NUMBERS = itertools.count()


class Table(tf.Module):
    """A table whose lookups are served, with another that stays as it is."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.other = ge.get_embedding_variable(f"evict_other_{next(NUMBERS)}", 3)
        self.other.insert(KEYS, np.ones([40, 3], np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="key")])
    def serve(self, key):
        rows, other = ge.group_embedding_lookup([self.table, self.other], [key, key])
        return {"rows": rows, "other": other}


def evicting(name, evict_option):
    option = ge.EmbeddingVariableOption(
        evict_option=evict_option,
        init_option=ge.InitializerOption(initializer=tf.keras.initializers.Constant(-1.0)),
    )
    return ge.get_embedding_variable(name, 3, ev_option=option)


def by_steps():
    """Keys that were not trained for more than five steps."""
    table = evicting("evict_steps", ge.GlobalStepEvict(steps_to_live=5))
    table.insert(KEYS, rows(KEYS), versions=np.where(np.isin(KEYS, KEPT), 8, 1))
    return table, lambda: table.evict(step=8)


def by_time():
    """Keys that were not trained for more than an hour: a table whose steps are seconds."""
    now = int(time.time())
    table = evicting("evict_time", ge.GlobalStepEvict(steps_to_live=3600))
    table.insert(KEYS, rows(KEYS), versions=now - 4000 * ~np.isin(KEYS, KEPT))
    return table, lambda: table.evict(step=now)


def by_norm():
    """Keys whose rows are small."""
    table = evicting("evict_norm", ge.L2WeightEvict(l2_weight_threshold=0.5))
    table.insert(KEYS, rows(KEYS))
    small = np.setdiff1d(KEYS, KEPT)

    def evict():
        table.insert(small, np.full([len(small), 3], 0.1, np.float32))
        table.evict()

    return table, evict


def by_capacity():
    """The oldest keys of a table that has as many as it may, when others come."""
    table = ge.sok.DynamicVariable(
        3, "-1", name="evict_capacity", var_type="hybrid", max_capacity=40
    )
    rest = np.setdiff1d(KEYS, KEPT)
    for keys in (rest, KEPT):
        ge.sok.assign(table, keys, rows(keys))
    return table, lambda: ge.sok.sparse_read_and_evict(table, 1000 + np.arange(len(rest)))


def by_budget():
    """The keys that were trained longest ago, of a table with a budget, when others come."""
    table = ge.keyed_table(
        "evict_budget", 3, initializer=tf.keras.initializers.Constant(-1.0), max_keys=40,
        budget_of="rank", keep_share=1.0,
    )  # fmt: skip
    table.insert(KEYS, rows(KEYS), versions=np.where(np.isin(KEYS, KEPT), 8, 1))
    others = 1000 + np.arange(30)

    def evict():
        table.insert(others, rows(others), versions=np.full(30, 9))
        table.erase(others)

    return table, evict


def by_scores_on_disk():
    """The keys of the lowest scores, most of whose rows are on disk, when a new key is trained."""
    table = ge.keyed_table(
        "evict_scores", 3, initializer=tf.keras.initializers.Constant(-1.0), max_keys=40,
        budget_of="rank", keep_share=0.25, evict="score", tiers=["dram", "disk"],
        tier_bytes=[12 * 48], disk_folder=make_folder(),
    )  # fmt: skip
    table.insert(KEYS, rows(KEYS))
    for some in np.split(KEYS, 4):
        table.set_scores(some, np.isin(some, KEPT))
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))

    def evict():
        with tf.GradientTape() as tape:
            (found,) = ge.lookup([table], [tf.constant([1000], tf.int64)])
            loss = tf.reduce_sum(found)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        assert ge.statistics([table]).tables["evict_scores"].evicted == {"score": 30}
        table.erase([1000])

    return table, evict


def by_minutes_of_batches():
    """Keys that were trained more than an hour before the events of the last batch."""
    table = ge.keyed_table(
        "evict_minutes", 3, initializer=tf.keras.initializers.Constant(-1.0), num_initial_rows=1,
        evict_after_minutes=60,
    )  # fmt: skip
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))

    def train(minute, keys, change):
        table.set_time(1_700_000_000 + 60 * minute)
        with tf.GradientTape() as tape:
            (found,) = ge.lookup([table], [tf.constant(keys)])
            loss = tf.reduce_sum(-found * change)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    def evict():
        train(90, KEPT, 0 * rows(KEPT))
        table.evict()

    train(0, KEYS, rows(KEYS) + 1)
    return table, evict


def rows(keys):
    return np.repeat(keys[:, None] + 1, 3, 1).astype(np.float32)


@pytest.mark.parametrize(
    "make",
    [
        by_steps,
        by_time,
        by_norm,
        by_capacity,
        by_budget,
        by_scores_on_disk,
        by_minutes_of_batches,
    ],
)
def test_an_evicted_key_is_erased_in_every_replica(make, tmp_path):
    # Given a table, replicas that serve it, in memory and in tiers, and have asked for its keys
    table, evict = make()
    model = Table(table)
    tiers = f"memory=1kB,rocksdb={tmp_path / 'rows'}"
    target = tmp_path / "target"
    with contextlib.ExitStack() as opened:
        publisher = opened.enter_context(Publisher(model, target, signatures=model.serve))
        publisher.publish(step=1)
        replicas = [
            opened.enter_context(InferenceSession(target / "1", **options))
            for options in ({}, {"tiers": tiers}, {"tiers": f"{tiers},insert=off"})
        ]
        for replica in replicas:
            assert (replica.predict({"key": KEYS})["rows"] > 0).all()
        # When the trainer evicts keys, and publishes once
        evict()
        assert np.sort(table.export().keys).tolist() == KEPT.tolist()
        publisher.publish(step=2)
        for replica in replicas:
            replica.apply(version_folder(target, 2))
            # Then they read what unknown keys do, and others what they did
            found = replica.predict({"key": KEYS})
            expected = np.where(np.isin(KEYS, KEPT)[:, None], rows(KEYS), -1.0)
            np.testing.assert_array_equal(found["rows"], expected)
            assert (found["other"] == 1).all()
        # And still do when the version after it moves that one into the base, and it is trained
        table.insert(KEYS[1:2], [[5.0, 6.0, 7.0]])
        for version in (3, 4):
            publisher.publish(step=version)
            for replica in replicas:
                replica.apply(version_folder(target, version))
                found = replica.predict({"key": KEYS})["rows"]
                assert found[1].tolist() == [5, 6, 7]
                np.testing.assert_array_equal(found[2:], expected[2:])
