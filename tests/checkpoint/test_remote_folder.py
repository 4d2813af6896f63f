"""Checkpoints that are uploaded while training goes on, and fetched by another machine."""

import concurrent.futures
import os
import threading
import warnings

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.checkpoint import DamagedCheckpointError, RemoteFolder, upload
from group_embedding.files import remote_files

pytest.importorskip("fsspec")
KEYS = np.arange(400, dtype=np.int64) * 7919
NAMES = ("user", "item", "word")


@pytest.fixture(params=["s3", "gs", pytest.param("hdfs", marks=pytest.mark.slow), "memory"])
def url(request):
    if request.param == "memory":
        return f"memory://{os.urandom(4).hex()}"
    return request.getfixturevalue(f"{request.param}_folder")


@pytest.fixture
def memory():
    return f"memory://{os.urandom(4).hex()}"


class Model:
    """Three keyed tables and a dense variable, whose content follows from a number."""

    def __init__(self):
        self.tables = [ge.get_embedding_variable(name, 4) for name in NAMES]
        self.dense = tf.Variable(tf.zeros([1000]))
        named = dict(zip(NAMES, self.tables))
        self.checkpoint = tf.train.Checkpoint(dense=self.dense, **named)

    def set(self, number, keys=KEYS):
        for i, table in enumerate(self.tables):
            table.insert(keys, np.float32(keys[:, None] % 1009 + number + i) + np.zeros(4, "f4"))
        self.dense.assign(tf.fill([1000], float(number)))

    def content(self):
        found = [self.dense.numpy()]
        for table in self.tables:
            keys, rows = (part.numpy() for part in table.export()[:2])
            order = np.argsort(keys)
            found += [keys[order], rows[order]]
        return found

    def has(self, content):
        return all(np.array_equal(a, b) for a, b in zip(self.content(), content))


def folder_of(url, folder, **options):
    return RemoteFolder(url, folder, progress=False, **options)


def fetched(url, folder):
    """A new model, restored from the newest checkpoint."""
    model = Model()
    with folder_of(url, folder) as run:
        model.checkpoint.restore(tf.train.latest_checkpoint(run.folder)).assert_consumed()
    return model


def test_another_machine_goes_on_from_the_newest(url, tmp_path):
    # Given a run that saves three checkpoints, of which two are kept
    model, contents = Model(), []
    with folder_of(url, tmp_path / "a", keep=2) as run:
        manager = tf.train.CheckpointManager(model.checkpoint, run.folder, 2)
        for number in range(3):
            model.set(number)
            contents.append(model.content())
            run.upload(manager.save())
        assert run.checkpoints() == ["ckpt-2", "ckpt-3"]

    # When another machine enters the run
    other = fetched(url, tmp_path / "b")

    # Then it has the newest to the bit, can have the one before, and goes on behind
    assert other.has(contents[2])
    with folder_of(url, tmp_path / "b", keep=2) as run:
        other.checkpoint.restore(run.fetch("ckpt-2"))
        assert other.has(contents[1])
        with pytest.raises(FileNotFoundError, match=f"{url}: expected a checkpoint 'ckpt-1', got"):
            run.fetch("ckpt-1")
        other.set(9)
        manager = tf.train.CheckpointManager(other.checkpoint, run.folder, 2)
        manager.save()
    assert fetched(url, tmp_path / "c").has(other.content())


def test_saves_of_changes_upload_what_changed(url, tmp_path):
    # Given a full save
    model = Model()
    with folder_of(url, tmp_path / "a") as run:
        manager = tf.train.CheckpointManager(model.checkpoint, run.folder, 5)
        model.set(1)
        run.upload(manager.save())
        full = remote_files.files_below(url)

        # When few rows change and only changes are saved
        model.set(2, KEYS[:5])
        run.upload(ge.checkpoint.save_changes(manager))
        new = {path: n for path, n in remote_files.files_below(url).items() if path not in full}

    # Then the tables of the full save were not sent again, and all is restored
    tables = [n for path, n in full.items() if ".data-r" in path]
    assert len(tables) == len(NAMES)
    assert not any(".data-r" in path for path in new)
    assert len([path for path in new if ".data-c" in path]) == len(NAMES)
    assert fetched(url, tmp_path / "b").has(model.content())


@pytest.mark.parametrize("what", ["byte", "length", "swapped", "manifest"])
def test_damage_is_named(memory, tmp_path, what):
    # Given two checkpoints, and a file of the newer one with another content
    model = Model()
    with folder_of(memory, tmp_path / "a") as run:
        manager = tf.train.CheckpointManager(model.checkpoint, run.folder, 5)
        for number in range(2):
            model.set(number)
            run.upload(manager.save())
    files = sorted(remote_files.files_below(memory))
    tables = [path for path in files if path.startswith("files/00000002") and ".data-r" in path]
    damaged = "00000002.json" if what == "manifest" else tables[0]
    with remote_files.open_file(f"{memory}/{damaged}") as file:
        content = bytearray(file.read())
    if what == "swapped":
        with remote_files.open_file(f"{memory}/{tables[1]}") as file:
            content = bytearray(file.read())
    elif what == "length":
        del content[-1]
    else:
        content[len(content) // 2] ^= 1
    remote_files.write_file(f"{memory}/{damaged}", bytes(content))

    # When another machine fetches
    run = folder_of(memory, tmp_path / "b")
    if what == "length":  # the one before is taken, with a warning
        with pytest.warns(UserWarning, match=f"{damaged} is missing or has another length"):
            assert run.fetch() == f"{run.folder}/ckpt-1"
        return
    with pytest.raises(DamagedCheckpointError, match=f"{memory}/{damaged}: expected"):
        run.fetch()

    # Then it has no checkpoint; one by its name is there
    assert tf.train.latest_checkpoint(run.folder) is None
    if what != "manifest":
        assert run.fetch("ckpt-1") == f"{run.folder}/ckpt-1"


def test_whatever_saves_is_uploaded_in_the_background(memory, tmp_path):
    # Given a session of TensorFlow 1 that saves by a hook, with two checkpoints kept
    with tf.Graph().as_default(), folder_of(memory, tmp_path / "a") as run:
        step = tf.compat.v1.train.get_or_create_global_step()
        table = ge.get_embedding_variable("user", 4)
        train = tf.group(table.insert(KEYS, tf.ones([len(KEYS), 4])), step.assign_add(1))
        hook = ge.checkpoint.CheckpointSaverHook(run.folder, save_steps=2)
        with tf.compat.v1.train.MonitoredTrainingSession(
            checkpoint_dir=run.folder, save_checkpoint_steps=None, hooks=[hook]
        ) as session:
            for _ in range(7):
                session.run(train)

    # When another machine fetches
    other = folder_of(memory, tmp_path / "b")
    path = other.fetch()

    # Then it has the last save, with its graph
    assert path == f"{other.folder}/model.ckpt-7"
    assert os.path.exists(f"{path}.meta")
    assert tf.train.load_variable(path, "global_step") == 7


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
def test_an_estimators_folder_is_uploaded(memory, tmp_path):
    def model_fn(features, labels, mode):
        table = ge.get_embedding_variable("item", 2)
        rows = ge.group_embedding_lookup([table], [features["ids"]])[0]
        loss = tf.reduce_mean(tf.square(rows - labels))
        optimizer = ge.optimizers.wrap(tf.compat.v1.train.GradientDescentOptimizer(0.1))
        step = tf.compat.v1.train.get_global_step()
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))

    def input_fn():
        batch = ({"ids": tf.range(8, dtype=tf.int64)}, tf.ones([8, 2]))
        return tf.data.Dataset.from_tensors(batch).repeat()

    # Given an Estimator that trained four steps; When one on another machine trains on
    # Then it goes on from there
    for folder, steps in (("a", 4), ("b", 10)):
        with folder_of(memory, tmp_path / folder) as run:
            estimator = tf.estimator.Estimator(model_fn, run.folder)
            estimator.train(input_fn, max_steps=steps)
    assert run.checkpoints()[-1] == "model.ckpt-10"
    assert "model.ckpt-4" in run.checkpoints()


def test_a_restart_sends_nothing_twice_and_keeps_what_is_newer(memory, tmp_path):
    # Given a run whose last checkpoint was not uploaded any more
    model = Model()
    with folder_of(memory, tmp_path / "a") as run:
        manager = tf.train.CheckpointManager(model.checkpoint, run.folder, 5)
        model.set(1)
        manager.save()
    before = remote_files.files_below(memory)
    with folder_of(memory, tmp_path / "a"):
        pass
    assert remote_files.files_below(memory) == before
    model.set(2)
    manager.save()

    # When the process starts again on this machine
    same = fetched(memory, tmp_path / "a")

    # Then it has that checkpoint, and uploads it
    assert same.has(model.content())
    assert run.checkpoints() == ["ckpt-1", "ckpt-2"]
    assert fetched(memory, tmp_path / "b").has(model.content())


def test_training_goes_on_during_a_slow_upload(memory, tmp_path, monkeypatch):
    # Given an upload that waits in its first file
    model, started, go_on = Model(), threading.Event(), threading.Event()
    send = remote_files.upload

    def slow(*arguments):
        started.set()
        assert go_on.wait(30)
        send(*arguments)

    monkeypatch.setattr(remote_files, "upload", slow)
    with folder_of(memory, tmp_path / "a") as run:
        manager = tf.train.CheckpointManager(model.checkpoint, run.folder, max_to_keep=1)
        model.set(0)
        first = model.content()
        manager.save()
        assert started.wait(30)

        # When training saves three times more, and deletes what is uploaded
        for number in (1, 2, 3):
            model.set(number)
            manager.save()
        go_on.set()

    # Then the first is whole, and the last is the newest; those between were left out
    assert run.checkpoints() == ["ckpt-1", "ckpt-4"]
    assert fetched(memory, tmp_path / "b").has(model.content())
    other = Model()
    other.checkpoint.restore(folder_of(memory, tmp_path / "c").fetch("ckpt-1"))
    assert other.has(first)


def test_a_store_that_fails_is_tried_again(memory, tmp_path, monkeypatch):
    # Given a store that refuses the first two files
    model, refusals, send = Model(), [OSError("full"), OSError("still full")], remote_files.upload

    def refuse(*arguments):
        if refusals:
            raise refusals.pop()
        send(*arguments)

    monkeypatch.setattr(remote_files, "upload", refuse)

    # When a checkpoint is saved, and training goes on
    with (
        pytest.warns(UserWarning, match="full; it is tried again"),
        folder_of(memory, tmp_path / "a") as run,
    ):
        manager = tf.train.CheckpointManager(model.checkpoint, run.folder, 5)
        model.set(1)
        manager.save()
        while not run.checkpoints():
            threading.Event().wait(0.1)

    # Then it is there
    assert fetched(memory, tmp_path / "b").has(model.content())


def test_the_end_of_a_run_tells_that_its_last_checkpoint_is_lost(memory, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(f"{memory}: the disk is full")

    monkeypatch.setattr(remote_files, "upload", refuse)
    with warnings.catch_warnings(), pytest.raises(OSError, match="the disk is full"):
        warnings.simplefilter("ignore")
        with folder_of(memory, tmp_path / "a") as run:
            tf.train.CheckpointManager(Model().checkpoint, run.folder, 5).save()
    assert run.checkpoints() == []


def test_two_processes_never_mix_their_checkpoints(url, tmp_path, monkeypatch):
    if url.startswith("gs"):
        pytest.skip("gcp-storage-emulator has no conditional writes")

    # Given two processes that do not know of each other, and begin one upload each
    models, runs = [Model(), Model()], [folder_of(url, tmp_path / name) for name in "ab"]
    paths = []
    for number, (model, run) in enumerate(zip(models, runs)):
        os.makedirs(run.folder)
        model.set(number)
        paths.append(tf.train.CheckpointManager(model.checkpoint, run.folder, 5).save())
    begin, write = threading.Barrier(2), upload.write_manifest

    def write_together(*arguments):
        begin.wait(30)
        write(*arguments)

    # When both write the first manifest
    with monkeypatch.context() as patch:
        patch.setattr(upload, "write_manifest", write_together)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            outcomes = [pool.submit(run.upload, path) for run, path in zip(runs, paths)]
            failed = [i for i, outcome in enumerate(outcomes) if outcome.exception(60)]

    # Then one gets the error that it is late, the other's is whole, and the next try is the next
    assert len(failed) == 1
    late, first = failed[0], 1 - failed[0]
    assert isinstance(outcomes[late].exception(), FileExistsError)
    assert fetched(url, tmp_path / "c").has(models[first].content())
    runs[late].upload(paths[late])
    assert fetched(url, tmp_path / "d").has(models[late].content())


def test_leftovers_of_a_killed_upload_are_removed(memory, tmp_path):
    # Given files that a killed process uploaded, without a manifest
    remote_files.write_file(f"{memory}/files/00000001/ckpt-1.data-rxxxx-of-xxxxx", b"half")
    remote_files.write_file(f"{memory}/files/00000005/ckpt-5.index", b"half")
    remote_files.write_file(f"{memory}/notes.txt", b"mine")

    # When the next checkpoint is uploaded
    with folder_of(memory, tmp_path / "a") as run:
        tf.train.CheckpointManager(Model().checkpoint, run.folder, 5).save()

    # Then they are gone, and files of others are not
    found = remote_files.files_below(memory)
    assert not [path for path in found if "rxxxx" in path or "00000005" in path]
    assert "notes.txt" in found
    assert run.checkpoints() == ["ckpt-1"]


def test_a_file_of_keras_is_uploaded(memory, tmp_path):
    with folder_of(memory, tmp_path / "a") as run:
        path = f"{run.folder}/weights-1.bin"
        with open(path, "wb") as file:
            file.write(b"weights")
        assert run.upload(path) == "weights-1.bin"
    other = folder_of(memory, tmp_path / "b")
    with open(other.fetch("weights-1.bin"), "rb") as file:
        assert file.read() == b"weights"


def test_progress_is_one_line(memory, tmp_path, capfd):
    with RemoteFolder(memory, tmp_path / "a") as run:
        tf.train.CheckpointManager(Model().checkpoint, run.folder, 5).save()
    said = [line for line in capfd.readouterr().err.splitlines() if memory in line]
    assert len(said) == 1
    assert f"{memory}: upload 1, " in said[0] and "(100%), " in said[0]


def test_paths_of_this_machine_are_refused(tmp_path):
    for path in (str(tmp_path), f"file://{tmp_path}"):
        with pytest.raises(ValueError, match="expected a URL such as s3://bucket/run"):
            RemoteFolder(path, tmp_path / "a")
