"""Keyed tables in checkpoints on another file system than this machine's: `ram://` of TensorFlow,
which is in this process alone. The tests of the others, made again, and one of each thing more.

No name is saved twice: on `ram://` stock variables cannot be restored then.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from checkpoint import checkpoint_cases as cases
from checkpoint.test_background import (  # noqa: F401
    test_a_background_save_holds_the_step_at_which_it_began,
)
from checkpoint.test_changes import (  # noqa: F401
    test_changes_in_eager_code,
    test_changes_restore_to_what_a_full_save_restores_to,
    test_the_first_save_after_a_restore_is_a_full_one,
)
from checkpoint.test_objects import (  # noqa: F401
    Model,
    test_another_object_is_restored,
    test_training_goes_on_bit_for_bit,
)

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.checkpoint.__main__ import main

v1 = tf.compat.v1
gfile = tf.io.gfile
BATCHES = cases.batches()
_number = itertools.count()


@pytest.fixture
def tmp_path():
    """A folder, as the tests of local ones have it: a path in a format string."""
    folder = f"ram://file_systems/{next(_number)}"
    gfile.makedirs(folder)
    return folder


def test_nothing_is_left_of_a_file_that_was_written(tmp_path):
    path = tf.train.Checkpoint(model=Model()).write(f"{tmp_path}/model")

    found = set(gfile.listdir(tmp_path))

    assert {name for name in found if name.endswith(".tmp")} == set()
    assert len(files.present(path)) == 1 and files.present(path)[0].startswith("ram://")


def test_old_checkpoints_are_deleted_with_their_files(tmp_path):
    # Given a Saver that keeps two, and saves of changes among them
    with tf.Graph().as_default(), v1.Session() as session:
        model = cases.build()
        saver = v1.train.Saver(max_to_keep=2)
        session.run(v1.global_variables_initializer())
        cases.train(session, model, BATCHES[:1])
        paths = [saver.save(session, f"{tmp_path}/model", global_step=0)]
        for step in range(1, 4):
            # When more are saved
            cases.train(session, model, [BATCHES[step]])
            paths.append(
                ge.checkpoint.save_changes(saver, session, f"{tmp_path}/model", global_step=step)
            )
        full = v1.train.Saver().save(session, f"{tmp_path}/full")
    # Then the files of the others are gone, and what was kept has a copy of the full save's
    assert [len(files.present(path)) for path in paths] == [0, 0, 4, 4]
    assert cases.content(paths[-1]) == cases.content(full)


def test_a_manager_deletes_old_checkpoints(tmp_path):
    model = Model()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(tmp_path), 2)
    for keys in BATCHES[:4]:
        model.train([keys])
        manager.save()

    assert not files.present(f"{tmp_path}/ckpt-2")
    assert len(files.present(f"{tmp_path}/ckpt-3")) == 1
    assert tf.train.Checkpoint(model=model).restore(manager.latest_checkpoint).assert_consumed()


def test_the_hook_saves(tmp_path):
    with tf.Graph().as_default():
        model = cases.build()
        hook = ge.checkpoint.CheckpointSaverHook(str(tmp_path), save_steps=3)
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_checkpoint_secs=None, chief_only_hooks=[hook]
        ) as session:
            for keys in BATCHES:
                session.run(model.train, {model.keys: keys})

    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert len(state.all_model_checkpoint_paths) > 3
    assert all(len(files.tables(path)) == 2 for path in state.all_model_checkpoint_paths)
    assert len(cases.content(state.model_checkpoint_path)[0]["user"]) > 20


def test_a_table_starts_from_a_checkpoint(tmp_path):
    keys = np.array([7, -1, 2**62])
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    table = ge.get_embedding_variable("user", 4)
    table.insert(keys, rows)
    checkpoint = tf.train.Checkpoint(model=table)
    checkpoint.save(f"{tmp_path}/ckpt")

    for start in (f"{tmp_path}/ckpt-1", str(tmp_path)):
        option = ge.EmbeddingVariableOption(ckpt=ge.CheckpointOption(start, "model"))
        found = ge.get_embedding_variable("other", 4, ev_option=option).export()
        order = np.argsort(keys)
        np.testing.assert_array_equal(found.keys, keys[order])
        np.testing.assert_array_equal(found.values, rows[order])


def test_a_saved_model_serves_its_rows(tmp_path):
    model = Model()
    model.train(BATCHES)
    expected = model.loss(BATCHES[3]).numpy()

    tf.saved_model.save(model, f"{tmp_path}/exported")
    loaded = tf.saved_model.load(f"{tmp_path}/exported")

    assert loaded.loss(BATCHES[3]).numpy() == expected
    assert main(["verify", f"{tmp_path}/exported"]) == 0


def test_the_command_inspects_verifies_and_exports(tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = ge.get_embedding_variable("command", 4)
    checkpoint = tf.train.Checkpoint(model=table)
    table.insert(np.arange(100), np.ones([100, 4], np.float32))
    checkpoint.save(f"{tmp_path}/ckpt")
    table.insert(np.arange(10), np.zeros([10, 4], np.float32))
    path = ge.checkpoint.save_changes(checkpoint, f"{tmp_path}/ckpt")

    assert main(["inspect", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert (
        "100 keys (int64), dim 4" in said
        and "10 keys (int64), dim 4" in said
        and f"{path}.data-c" in said
    )
    assert main(["verify", path]) == 0
    assert main(["export", path, "--out", f"{tmp_path}/rows.parquet"]) == 0

    with gfile.GFile(f"{tmp_path}/rows.parquet", "rb") as file:
        import pyarrow

        found = parquet.read_table(pyarrow.BufferReader(file.read())).to_pylist()
    assert {row["key"]: row["values"][0] for row in found} == {
        key: float(key >= 10) for key in range(100)
    }


def test_damage_is_refused_before_anything_changes(tmp_path, capsys):
    # Given a checkpoint of three tables, one file of which is damaged, cut or missing
    tables = [ge.get_embedding_variable(name, 4) for name in ("user", "item", "shop")]
    checkpoint = tf.train.Checkpoint(tables=tables)
    for table in tables:
        table.insert(np.arange(50), np.ones([50, 4], np.float32))
    path = checkpoint.write(f"{tmp_path}/model")
    for table in tables:
        table.insert(np.arange(50), np.full([50, 4], 2, np.float32))
    name = files.present(path)[-1]
    with gfile.GFile(name, "rb") as file:
        whole = file.read()
    other = files.present(path)[0]
    with gfile.GFile(other, "rb") as file:
        swapped = file.read()

    for content in (cases.flip(whole, 4000), whole[:-7], swapped, None):
        gfile.remove(name)
        if content is not None:
            with gfile.GFile(name, "wb") as file:
                file.write(content)
        # When it is restored, then that names the file, and no table has changed
        with pytest.raises(tf.errors.DataLossError, match="table '(user|item|shop)'") as error:
            checkpoint.read(path)
        assert name in str(error.value)
        assert main(["verify", path]) == 1
        assert name in capsys.readouterr().out
        assert all(table.export().values.numpy().max() == 2 for table in tables)

    with gfile.GFile(name, "wb") as file:
        file.write(whole)
    checkpoint.read(path)
    assert all(table.export().values.numpy().max() == 1 for table in tables)


def test_a_checkpoint_that_is_copied_to_another_file_system_is_restored(tmp_path, tmp_path_factory):
    local = tmp_path_factory.mktemp("local")
    table = ge.get_embedding_variable("copied", 4)
    table.insert(np.arange(50), np.ones([50, 4], np.float32))
    checkpoint = tf.train.Checkpoint(table=table)
    path = checkpoint.write(f"{tmp_path}/model")
    for name in gfile.listdir(tmp_path):
        gfile.copy(f"{tmp_path}/{name}", f"{local}/{name}")
    table.insert(np.arange(50), np.zeros([50, 4], np.float32))

    checkpoint.read(f"{local}/model")

    assert table.export().values.numpy().min() == 1
    assert [p.rpartition("/")[2] for p in files.present(f"{local}/model")] == [
        p.rpartition("/")[2] for p in files.present(path)
    ]
