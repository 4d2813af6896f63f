"""Saves of changes on several ranks: when there are some, and when all rows are saved instead."""

import os

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.checkpoint import checkpoint_files as files

v1 = tf.compat.v1
KEYS = np.arange(40)


class Model:
    """A table of 40 keys in a graph, of which `train` moves those that it is fed."""

    def __init__(self):
        ge.enable_distributed_strategy()
        self.rank = exchange.current().rank
        self.table = ge.get_embedding_variable("user", 2, initializer=v1.zeros_initializer())
        self.keys = v1.placeholder_with_default(tf.constant(KEYS), [None])
        (rows,) = ge.group_embedding_lookup([self.table], [self.keys])
        optimizer = ge.optimizers.wrap(v1.train.GradientDescentOptimizer(1.0))
        optimizer = ge.DistributedOptimizer(optimizer)
        self.step = v1.train.get_or_create_global_step()
        self.train = optimizer.minimize(tf.reduce_sum(rows), self.step)
        self.found = self.table.export(gather=True)

    def values(self, session):
        return session.run(self.found).values[:, 0].tolist()


def kinds_of(path):
    """For each file of the table, whether it has changes only."""
    (table,) = files.tables(path)
    return sorted(file["changes_only"] for file in table["files"])


def save_without_a_part(folder):
    """Full saves are gone, of one rank alone."""
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model()
        saver = ge.Saver()
        session.run(v1.global_variables_initializer())
        session.run(model.train)
        full = saver.save(session, f"{folder}/full")
        if model.rank == 0:
            os.unlink(files.tables(full)[0]["files"][1]["path"])
        session.run(model.train, {model.keys: KEYS[:7]})
        path = ge.checkpoint.save_changes(saver, session, f"{folder}/changes")
        expected = model.values(session)
        session.run(model.train)
        saver.restore(session, path)
        return kinds_of(path), model.values(session) == expected


def test_all_ranks_save_all_rows_where_one_has_no_full_save(two_ranks, tmp_path):
    ranks = two_ranks.run(save_without_a_part, str(tmp_path))

    assert ranks == [([False, False], True)] * 2


def save_while_old_ones_go(folder):
    """The full save is deleted as soon as there are changes."""
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model()
        saver = ge.Saver(max_to_keep=1)
        session.run(v1.global_variables_initializer())
        session.run(model.train)
        saver.save(session, f"{folder}/model", global_step=0)
        for step in (1, 2, 3):
            session.run(model.train, {model.keys: KEYS[:step]})
            path = ge.checkpoint.save_changes(saver, session, f"{folder}/model", global_step=step)
        expected = model.values(session)
        session.run(model.train)
        saver.restore(session, path)
        return kinds_of(path), model.values(session) == expected


def test_changes_outlive_the_full_save_that_they_were_added_to(two_ranks, tmp_path):
    ranks = two_ranks.run(save_while_old_ones_go, str(tmp_path))

    assert ranks == [([False, False, True, True], True)] * 2
    assert not files.present(tmp_path / "model-0")
    assert len(files.present(tmp_path / "model-3")) == 4


def train_with_the_hook(folder):
    """Every second step is saved in full, by its number, and those between by the clock."""
    with tf.Graph().as_default():
        model = Model()
        saver = ge.Saver(max_to_keep=9)
        own = folder if model.rank == 0 else f"{folder}/of_{model.rank}"
        os.makedirs(own, exist_ok=True)
        hook = ge.checkpoint.CheckpointSaverHook(
            own,
            save_steps=2,
            save_incremental_secs=1e-6,
            saver=saver,
            checkpoint_basename=f"{folder}/model",
        )
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(4):
                session.run(model.train)
            refusal = "nothing"
            try:
                ge.checkpoint.BackgroundSave(saver, session, f"{folder}/other")
            except ValueError as error:
                refusal = str(error)
            # Without the hooks, which would save again.
            return session.run_step_fn(
                lambda step_context: model.values(step_context.session)
            ), refusal


def test_the_hook_saves_at_the_same_steps_on_all_ranks(two_ranks, tmp_path):
    (values, refusal), other = two_ranks.run(train_with_the_hook, str(tmp_path))

    kinds = {step: kinds_of(tmp_path / f"model-{step}") for step in range(5)}
    changes = [False, False, True, True]
    assert kinds[0] == kinds[2] == kinds[4] == [False, False]
    assert kinds[1] == kinds[3] == changes
    assert values == [-4.0] * len(KEYS)
    assert (values, refusal) == other
    assert "BackgroundSave: expected one process, got a Saver of 2 ranks" in refusal


@pytest.mark.parametrize("ranks_that_want", [[0], [1]])
def test_ranks_that_want_different_saves_save_all_rows(two_ranks, tmp_path, ranks_that_want):
    two_ranks.run(save_what_the_rank_wants, str(tmp_path), ranks_that_want)

    assert kinds_of(tmp_path / "changes_0-1") == [False, False]


def save_what_the_rank_wants(folder, ranks_that_want):
    ge.enable_distributed_strategy()
    rank = exchange.current().rank
    table = ge.get_embedding_variable("user", 2)
    table.insert(KEYS, np.ones([len(KEYS), 2]))
    checkpoint = tf.train.Checkpoint(table=table)
    checkpoint.write(f"{folder}/full_{rank}")
    table.erase(KEYS[:3])
    if rank in ranks_that_want:
        ge.checkpoint.save_changes(checkpoint, f"{folder}/changes_{rank}")
    else:
        checkpoint.save(f"{folder}/changes_{rank}")


def save_objects(folder):
    """A full save and one of changes, under one name."""
    ge.enable_distributed_strategy()
    table = ge.get_embedding_variable("user", 2)
    table.insert(KEYS, np.ones([len(KEYS), 2]))
    checkpoint = tf.train.Checkpoint(table=table)
    path = f"{folder}/{exchange.current().rank}"
    checkpoint.write(path)
    table.insert(KEYS[:5], np.zeros([5, 2]))
    table.erase(KEYS[-3:])
    with ge.checkpoint.changes_only():
        return checkpoint.write(path)


def restore_objects(path):
    table = ge.get_embedding_variable("user", 2)
    table.insert([-1], np.ones([1, 2]))  # is to be forgotten
    tf.train.Checkpoint(table=table).read(path)
    found = table.export(gather=True)
    return dict(zip(found.keys.numpy().tolist(), found.values.numpy()[:, 0].tolist()))


def test_changes_of_objects_are_restored_by_ranks_and_by_one_process(two_ranks, tmp_path):
    path = two_ranks.run(save_objects, str(tmp_path))[0]

    restored = [*two_ranks.run(restore_objects, path), restore_objects(path)]

    assert kinds_of(path) == [False, False, True, True]
    assert restored == [{key: float(key >= 5) for key in KEYS[:-3].tolist()}] * 3
