"""Saves that training does not wait for hold one instant."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from checkpoint import checkpoint_cases as cases

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files

v1 = tf.compat.v1
BATCHES = cases.batches()


def expected_after(num_steps, folder):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        model = cases.build()
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        cases.train(session, model, BATCHES[:num_steps])
        return cases.content(saver.save(session, f"{folder}/expected"))


def test_a_background_save_holds_the_step_at_which_it_began(tmp_path):
    expected = expected_after(5, tmp_path)

    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        model = cases.build()
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        cases.train(session, model, BATCHES[:5])
        save = ge.checkpoint.BackgroundSave(saver, session, f"{tmp_path}/model", global_step=5)
        cases.train(session, model, BATCHES[5:])
        path = save.result()

    assert cases.content(path) == expected


def test_an_error_of_a_background_save_is_raised_by_its_result(tmp_path):
    (tmp_path / "a_file").write_text("")
    with tf.Graph().as_default(), v1.Session() as session:
        cases.build()
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())

        save = ge.checkpoint.BackgroundSave(saver, session, f"{tmp_path}/a_file/model")

        with pytest.raises((tf.errors.OpError, ValueError)):
            save.result()


def test_of_two_saves_at_a_time_one_is_refused(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        table = ge.get_embedding_variable("user", 16)
        keys, rows = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None, 16])
        insert = table.insert(keys, rows)
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        session.run(insert, {keys: np.arange(200_000), rows: np.ones([200_000, 16])})

        first = ge.checkpoint.BackgroundSave(saver, session, f"{tmp_path}/first")
        whole, refused = [], []
        for save in (lambda: saver.save(session, f"{tmp_path}/second"), first.result):
            try:
                whole.append(save())
            except tf.errors.FailedPreconditionError as error:
                refused.append(str(error))

    # Unless the first had ended already
    assert len(whole) + len(refused) == 2 and whole
    assert all("table 'user': expected" in words for words in refused)
    assert all(len(cases.content(path)[0]["user"]) == 200_000 for path in whole)


@pytest.mark.timed
def test_training_waits_for_the_snapshot_alone(tmp_path):
    # Given a table whose rows take a while to write
    num_keys, dim = 500_000, 32
    with tf.Graph().as_default(), v1.Session() as session:
        table = ge.get_embedding_variable("user", dim)
        keys, rows = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None, dim])
        insert = table.insert(keys, rows)
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        session.run(insert, {keys: np.arange(num_keys), rows: np.ones([num_keys, dim])})
        waited, took = [], []
        # When it is saved while rows change
        for n in range(3):
            start = time.perf_counter()
            save = ge.checkpoint.BackgroundSave(saver, session, f"{tmp_path}/model", global_step=n)
            waited.append(time.perf_counter() - start)
            session.run(insert, {keys: np.arange(1000), rows: np.full([1000, dim], n + 2.0)})
            path = save.result()
            took.append(time.perf_counter() - start)
    # Then the wait is a small part of the save, and what is saved is what was there before
    print(f"waited {min(waited) * 1e3:.2f} ms of {min(took) * 1e3:.0f} ms")
    assert min(waited) < min(took) / 4
    saved = cases.content(path)[0]["user"]
    assert len(saved) == num_keys
    assert saved[0][2] == np.full(dim, n + 1.0, np.float32).tobytes()
    assert saved[num_keys - 1][2] == np.ones(dim, np.float32).tobytes()


@pytest.mark.parametrize("incremental", [False, True])
def test_the_hook_saves_while_a_session_trains(incremental, tmp_path):
    expected = expected_after(len(BATCHES), tmp_path)
    folder = tmp_path / "hook"

    with tf.Graph().as_default():
        v1.set_random_seed(1)
        model = cases.build()
        hook = ge.checkpoint.CheckpointSaverHook(
            str(folder),
            save_steps=100 if incremental else 3,
            save_incremental_secs=1e-6 if incremental else None,
        )
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(folder), save_checkpoint_secs=None, chief_only_hooks=[hook]
        ) as session:
            for keys in BATCHES:
                session.run(model.train, {model.keys: keys})

    state = tf.train.get_checkpoint_state(folder)
    assert cases.content(state.model_checkpoint_path) == expected
    kinds = [
        file["changes_only"]
        for path in state.all_model_checkpoint_paths[:-1]
        for table in files.tables(path)
        for file in table["files"]
    ]
    assert any(kinds) == incremental


@pytest.mark.timed
def test_a_session_of_one_thread_trains_while_tables_are_written(tmp_path):
    # Given tables whose rows take a while to write, and a session whose ops have one thread
    num_keys, dim, names = 300_000, 32, ("user", "item", "shop")
    one_thread = v1.ConfigProto()
    one_thread.session_inter_op_thread_pool.add().num_threads = 1
    with tf.Graph().as_default() as graph, v1.Session(config=one_thread) as session:
        tables = [ge.get_embedding_variable(name, dim) for name in names]
        keys, rows = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None, dim])
        insert = tf.group([table.insert(keys, rows) for table in tables])
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        session.run(insert, {keys: np.arange(num_keys), rows: np.ones([num_keys, dim])})
        some = {keys: np.arange(1000), rows: np.full([1000, dim], 2.0)}

        def save_in_thread(prefix):
            def save():
                with graph.as_default():
                    saver.save(session, prefix)

            thread = threading.Thread(target=save)
            thread.start()
            return thread

        def save_in_background(prefix):
            return ge.checkpoint.BackgroundSave(saver, session, prefix)._thread

        # When it trains on, whichever way they are saved
        longest, took = [], []
        for way in (save_in_thread, save_in_background):
            start, steps = time.perf_counter(), []
            thread = way(f"{tmp_path}/{way.__name__}")
            while thread.is_alive():
                step = time.perf_counter()
                session.run(insert, some)
                steps.append(time.perf_counter() - step)
            longest.append(max(steps))
            took.append(time.perf_counter() - start)
    # Then no step waits for a table to be written
    print(f"waited {np.multiply(longest, 1e3)} ms of {np.multiply(took, 1e3)} ms")
    assert all(wait < whole / 4 for wait, whole in zip(longest, took))
    saved = cases.content(f"{tmp_path}/save_in_background")[0]
    assert all(len(saved[name]) == num_keys for name in names)
