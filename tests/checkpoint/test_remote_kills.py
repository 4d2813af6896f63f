"""A process that is killed during uploads, a datanode that is killed: the newest complete
checkpoint restores to the bit, and nothing half is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from support.cases import sample_files
from support.servers.hdfs_server import HdfsServer
from support.servers.shared_server import ServerMissing

import group_embedding as ge
from group_embedding.checkpoint import RemoteFolder
from group_embedding.files import remote_files

pytest.importorskip("fsspec")
SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))


def kill(url, folder, num_kills):
    """Runs the script; the kills that hit an upload."""
    script = Path(__file__).with_name("remote_kills.py")
    command = [sys.executable, script, url, folder, str(num_kills), str(SEED)]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(run.stdout)
    assert run.returncode == 0, run.stdout[-3000:]
    found = re.search(r"(\d+) kills, (\d+) within an upload, step (\d+)", run.stdout)
    done, num_within, step = map(int, found.groups())
    assert done == num_kills and step >= num_kills
    return num_within


@pytest.mark.slow
def test_a_client_that_is_killed_during_uploads_to_s3(s3_folder, tmp_path):
    assert kill(s3_folder, tmp_path, 5) > 0


@pytest.mark.soak
def test_a_client_that_is_killed_during_uploads_to_hdfs(hdfs_folder, tmp_path):
    assert kill(hdfs_folder, tmp_path, 3) > 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_a_client_that_is_killed_two_hundred_times(request, tmp_path, kind):
    assert kill(request.getfixturevalue(f"{kind}_folder"), tmp_path, 200) > 50


@pytest.fixture(scope="module")
def own_hdfs(tmp_path_factory):
    server = HdfsServer(tmp_path_factory.mktemp("hdfs"))
    try:
        server.start()
    except ServerMissing as error:
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.mark.soak
def test_a_reader_whose_datanode_is_killed_goes_on_later(own_hdfs, tmp_path):
    # Given a reader of files on HDFS that has handed out some batches
    folder = sample_files.write_parquet(tmp_path / "samples", [4000, 4000, 4000])
    url = f"{own_hdfs.settings['url']}/samples"
    for path in sorted(folder.iterdir()):
        remote_files.upload(str(path), f"{url}/{path.name}")
    reader = ge.data.Reader(url, 100, ["user"], num_threads=1)
    batches, users = reader.batches(), []
    for _ in range(5):
        users += next(batches)["user"].numpy().tolist()

    # When the datanode is killed, batches that are not read yet are an error by name
    own_hdfs.kill_datanode()
    with pytest.raises(tf.errors.OpError, match=f"{url}/part-"):
        for batch in batches:
            users += batch["user"].numpy().tolist()

    # Then, when it is back, a reader goes on from the state to the rows that follow
    own_hdfs.start_datanode()
    later = ge.data.Reader(url, 100, ["user"])
    later.state.from_json(reader.state.to_json())
    users += [user for batch in later for user in batch["user"].numpy().tolist()]
    assert users == list(range(12_000))


@pytest.mark.soak
def test_a_datanode_that_is_killed_in_the_middle(own_hdfs, tmp_path):
    # Given one checkpoint on HDFS, and a second one whose table is on the way
    url = f"{own_hdfs.settings['url']}/run"
    table = ge.get_embedding_variable("user", 64)
    table.insert(tf.range(200_000, dtype=tf.int64), tf.ones([200_000, 64]))
    checkpoint = tf.train.Checkpoint(table=table)
    run = RemoteFolder(url, tmp_path / "a", progress=False)
    os.makedirs(run.folder)
    manager = tf.train.CheckpointManager(checkpoint, run.folder, 5)
    run.upload(manager.save())
    second = manager.save()
    pieces = iter([lambda: None, own_hdfs.kill_datanode])

    # When the datanode is killed after a piece of it
    send = remote_files.upload

    def kill_in_the_middle(path, url, on_bytes, on_piece):
        def count(num_bytes):
            on_bytes(num_bytes)
            next(pieces, lambda: None)()

        if os.path.getsize(path) < 10_000_000:
            return send(path, url, on_bytes, on_piece)
        return send(path, url, count, on_piece)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_files, "upload", kill_in_the_middle)
        with pytest.raises(OSError, match=f"{url}/files/00000002-..../ckpt-2"):
            run.upload(second)

    # Then the file has no name, reads are errors by name, and the checkpoint is the first; when
    # the datanode is back, the second upload goes through
    below = remote_files.files_below(url)
    assert not [path for path in below if path.startswith("files/00000002") and ".data-r" in path]
    with pytest.raises(OSError, match=f"{url}/00000001.json: "):
        run.checkpoints()
    own_hdfs.start_datanode()
    assert run.checkpoints() == ["ckpt-1"]
    run.upload(second)
    assert run.checkpoints() == ["ckpt-1", "ckpt-2"]
    other = RemoteFolder(url, tmp_path / "b", progress=False)
    copy = ge.get_embedding_variable("user", 64)
    tf.train.Checkpoint(table=copy).restore(other.fetch()).assert_consumed()
    assert int(copy.total_count()) == 200_000
