"""Checkpoints of changes: restored, they equal full ones of the same step."""

import os

import numpy as np
import tensorflow as tf
from checkpoint import checkpoint_cases as cases

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files

v1 = tf.compat.v1
BATCHES = cases.batches()


def session_with_a_full_save(folder, **options):
    session = v1.Session()
    model = cases.build(**options)
    erase = model.tables[0].erase(BATCHES[0].reshape(-1)[:7])
    saver = v1.train.Saver(max_to_keep=3)
    session.run(v1.global_variables_initializer())
    cases.train(session, model, BATCHES[:4])
    saver.save(session, f"{folder}/model", global_step=4)
    return session, model, saver, erase


def test_changes_restore_to_what_a_full_save_restores_to(tmp_path):
    # Given rows trained, made and erased after a full save
    with tf.Graph().as_default():
        session, model, saver, erase = session_with_a_full_save(tmp_path)
        session.run(erase)
        cases.train(session, model, BATCHES[4:6])
        session.run(erase)
        # When the changes are saved, and all, at the same step
        changes = ge.checkpoint.save_changes(saver, session, f"{tmp_path}/model", global_step=6)
        full = saver.save(session, f"{tmp_path}/full")
        # Then both restore to the same, to the last bit
        saver.restore(session, changes)
        from_changes = saver.save(session, f"{tmp_path}/from_changes")
        session.close()

    assert cases.content(from_changes) == cases.content(full) == cases.content(changes)
    written = [f for t in files.tables(changes) for f in t["files"] if f["changes_only"]]
    assert len(written) == 2
    assert tf.train.latest_checkpoint(tmp_path) is not None


def test_changes_outlive_the_full_save_that_they_were_added_to(tmp_path):
    with tf.Graph().as_default():
        session, model, saver, _ = session_with_a_full_save(tmp_path)
        for step in range(5, 10):
            cases.train(session, model, [BATCHES[step]])
            path = ge.checkpoint.save_changes(saver, session, f"{tmp_path}/model", global_step=step)
        full = saver.save(session, f"{tmp_path}/full", global_step=9)
        session.close()

    # Three of five checkpoints are kept; they have the rows of the full save, which is deleted
    assert not os.path.exists(f"{tmp_path}/model-4.index")
    assert not files.present(f"{tmp_path}/model-4")
    assert cases.content(path) == cases.content(full)
    assert any(f["changes_only"] for t in files.tables(path) for f in t["files"])


def test_the_first_save_after_a_restore_is_a_full_one(tmp_path):
    with tf.Graph().as_default():
        session, model, saver, _ = session_with_a_full_save(tmp_path)
        saver.restore(session, f"{tmp_path}/model-4")
        cases.train(session, model, BATCHES[4:5])
        path = ge.checkpoint.save_changes(saver, session, f"{tmp_path}/model", global_step=5)
        full = saver.save(session, f"{tmp_path}/full")
        session.close()

    assert not any(f["changes_only"] for t in files.tables(path) for f in t["files"])
    assert cases.content(path) == cases.content(full)


def test_counts_of_keys_that_are_not_admitted_are_changes_too(tmp_path):
    with tf.Graph().as_default():
        session, model, saver, _ = session_with_a_full_save(
            tmp_path, filter_option=ge.CounterFilter(3)
        )
        cases.train(session, model, BATCHES[4:6])
        changes = ge.checkpoint.save_changes(saver, session, f"{tmp_path}/model", global_step=6)
        cases.train(session, model, BATCHES[6:])
        expected = cases.content(saver.save(session, f"{tmp_path}/full"))
        saver.restore(session, changes)
        cases.train(session, model, BATCHES[6:])
        again = cases.content(saver.save(session, f"{tmp_path}/again"))
        session.close()

    assert again == expected


def test_changes_in_eager_code(tmp_path):
    table = ge.get_embedding_variable("eager_changes", 4)
    checkpoint = tf.train.Checkpoint(table=table, step=tf.Variable(1))
    keys = np.arange(100)
    table.insert(keys, np.ones([100, 4], np.float32))
    checkpoint.save(f"{tmp_path}/model")

    table.insert(keys[:3], np.zeros([3, 4], np.float32))
    table.erase(keys[5:9])
    path = ge.checkpoint.save_changes(checkpoint, f"{tmp_path}/model")
    table.erase(keys)
    checkpoint.restore(path)

    (saved,) = files.tables(path)
    assert [file["changes_only"] for file in saved["files"]] == [False, True]
    found = dict(zip(table.export()[0].numpy().tolist(), table.export()[1].numpy()[:, 0].tolist()))
    assert found == {k: 0.0 if k < 3 else 1.0 for k in keys.tolist() if not 5 <= k < 9}
