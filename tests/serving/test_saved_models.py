"""SavedModels at URLs: whole or not there, verified when they are opened."""

import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.files import remote_files
from group_embedding.files.connections import FileSystemError

pytest.importorskip("fsspec")


@pytest.fixture(params=["s3", "gs", pytest.param("hdfs", marks=pytest.mark.slow), "memory"])
def url(request):
    if request.param == "memory":
        return f"memory://{os.urandom(4).hex()}/7"
    return request.getfixturevalue(f"{request.param}_folder") + "/7"


@pytest.fixture
def memory():
    return f"memory://{os.urandom(4).hex()}/7"


class Model(tf.Module):
    """A model with two keyed tables and one by row number."""

    def __init__(self):
        super().__init__()
        self.tables = [ge.get_embedding_variable(name, 2) for name in ("user", "item")]
        self.rows = tf.Variable(tf.reshape(tf.range(20.0), [10, 2]))
        for i, table in enumerate(self.tables):
            table.insert(np.arange(10, dtype=np.int64), np.full([10, 2], i + 1, np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="id")])
    def serve(self, ids):
        found = ge.group_embedding_lookup([*self.tables, self.rows], [ids] * 3)
        return {"sum": tf.add_n(found)}


def export(url):
    model = Model()
    with ge.serving.export_to(url, progress=False) as folder:
        tf.saved_model.save(model, folder, {"serving_default": model.serve})


def test_models_are_exported_and_opened(url):
    # Given a model at a URL
    export(url)
    expected = (np.arange(20.0).reshape(10, 2) + 3)[[3, 5]]

    # When it is opened for requests, and by TensorFlow
    # Then it answers as trained, and its version is the folder's name
    with ge.serving.InferenceSession(url) as session:
        assert session.version == 7
        assert np.array_equal(session.predict({"id": np.array([3, 5])})["sum"], expected)
    with ge.serving.local_model(url, progress=False) as folder:
        loaded = tf.saved_model.load(folder)
        found = loaded.signatures["serving_default"](id=tf.constant([3, 5], tf.int64))["sum"]
        assert np.array_equal(found, expected)
    assert not os.path.exists(folder)

    # And another is not written over it
    with pytest.raises(FileExistsError, match=f"{url}: expected a folder without a model"):
        export(url)


def test_a_model_is_there_when_its_last_file_is(memory, monkeypatch):
    # Given an upload that fails at its third file
    send, lock, count = remote_files.upload, threading.Lock(), iter(range(100))

    def fail(*arguments):
        with lock:
            number = next(count)
        if number == 2:
            raise OSError("the disk is full")
        send(*arguments)

    monkeypatch.setattr(remote_files, "upload", fail)
    with pytest.raises(OSError, match="the disk is full"):
        export(memory)

    # When it is opened, there is no model; When it is exported again, it is whole
    with pytest.raises(FileNotFoundError, match=f"{memory}: expected a SavedModel"):
        ge.serving.InferenceSession(memory)
    export(memory)
    ge.serving.InferenceSession(memory).close()


def test_an_error_in_the_context_uploads_nothing(memory):
    with pytest.raises(ZeroDivisionError), ge.serving.export_to(memory) as folder:
        tf.saved_model.save(tf.Module(), folder)
        raise ZeroDivisionError
    assert remote_files.files_below(memory) == {}


@pytest.mark.parametrize("what", ["byte", "length", "missing", "manifest"])
def test_damage_is_named(memory, what):
    # Given a model with a damaged file
    export(memory)
    paths = remote_files.files_below(memory)
    path = next(path for path in sorted(paths) if ".data-r" in path)
    if what == "manifest":
        path = "assets.extra/manifest.json"
    with remote_files.open_file(f"{memory}/{path}") as file:
        content = bytearray(file.read())
    if what == "missing":
        remote_files.remove(f"{memory}/{path}")
    else:
        content[0] ^= 1
        content = content[:-1] if what == "length" else content
        remote_files.write_file(f"{memory}/{path}", bytes(content))

    # When it is opened, the error names the file
    with pytest.raises(FileSystemError, match=f"{memory}/{path}: expected"):
        ge.serving.InferenceSession(memory)


def test_a_model_that_another_program_wrote_is_copied_as_it_is(memory):
    export(memory)
    remote_files.remove(f"{memory}/assets.extra/manifest.json")
    with ge.serving.InferenceSession(memory) as session:
        assert session.predict({"id": np.array([3])})["sum"].tolist() == [[9.0, 10.0]]


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path):
    for name in ("../a", "/etc/passwd", "a/../../b", "", "a//b", "./a"):
        with pytest.raises(FileSystemError, match="s3://shop: expected names of files below"):
            remote_files.path_below(str(tmp_path), name, "s3://shop")


def test_a_path_of_this_machine_is_the_folder_itself(tmp_path):
    export(f"file://{tmp_path}/7")
    with ge.serving.local_model(tmp_path / "7") as folder:
        assert folder == str(tmp_path / "7")
    ge.serving.InferenceSession(tmp_path / "7").close()
