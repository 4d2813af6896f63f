"""Files of saves that failed or were killed: the next save removes them, and no file in use."""

import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.ops import save_table

v1 = tf.compat.v1

NAMES = ("user", "item", "shop")
FILES = {"data-rabcd-of-efghi": b"rows", "data-c0123-of-45678": b"changes"}


def make(num_keys=50):
    tables = [ge.get_embedding_variable(name, 4) for name in NAMES]
    for table in tables:
        table.insert(np.arange(num_keys), np.ones([num_keys, 4], np.float32))
    return tables, tf.train.Checkpoint(tables=tables)


def found_in(folder):
    return set(os.listdir(folder))


def leave(folder, prefix, names=FILES):
    for name in names:
        (folder / f"{prefix}.{name}").write_bytes(b"rows")


def test_files_of_a_process_that_was_killed_go_with_the_next_save(tmp_path):
    # Given what a killed process leaves: files of checkpoints without an index, one half written
    leave(tmp_path, "model-7")
    leave(tmp_path, "other-1")
    leave(tmp_path, "model-8", ["data-rabcd-of-efghi.tmp"])
    # and what is not: a whole checkpoint, one that is being copied, files of others
    leave(tmp_path, "kept-1")
    (tmp_path / "kept-1.index").write_bytes(b"")
    leave(tmp_path, "copied-1")
    (tmp_path / "copied-1.data-00000-of-00001").write_bytes(b"")
    (tmp_path / "model-9.data-rabcd-of-efgh").write_bytes(b"no file of a table")
    (tmp_path / "data.tmp").write_bytes(b"no file of a table")
    before = found_in(tmp_path)
    gone = {name for name in before if name.startswith(("model-7", "other-1", "model-8"))}
    # When a checkpoint is saved in that folder
    _, checkpoint = make()
    path = checkpoint.write(f"{tmp_path}/new")
    # Then what was left is gone, and all else is there
    assert len(gone) == 5
    assert before - found_in(tmp_path) == gone
    assert len(files.present(path)) == 3


def test_a_save_whose_index_is_not_written_yet_is_no_leftover_of_the_next(tmp_path):
    # Given a session whose save has written the rows of two tables, and not yet its index
    written, may_go_on = threading.Event(), threading.Event()
    with tf.Graph().as_default(), v1.Session() as session:
        tables = [ge.get_embedding_variable(name, 4) for name in NAMES[:2]]
        session.run([table.initializer for table in tables])
        session.run([t.insert(np.arange(50), np.ones([50, 4], np.float32)) for t in tables])
        handles = [table.table_handle for table in tables]
        keep = [("none", 0, 0.0, 0)] * 2
        snapshot = save_table.snapshot_tables(handles, [0, 0], keep, [False, False])
        with tf.control_dependencies(
            [save_table.save_table(handle, f"{tmp_path}/first", snapshot) for handle in handles]
        ):
            wait = tf.numpy_function(lambda: (written.set(), may_go_on.wait(60))[1], [], tf.bool)
        saver = v1.train.Saver(tables)
        first = threading.Thread(target=session.run, args=[wait])
        first.start()
        assert written.wait(60)
        files_of_first = found_in(tmp_path)

        # When the tables are saved again, and the first save ends
        saver.save(session, f"{tmp_path}/second")
        present = found_in(tmp_path)
        may_go_on.set()
        first.join()

        # Then the files of the first were there as long as it ran
        assert len(files_of_first) == 2 and files_of_first <= present
        # And go with the next save, as it wrote no index
        saver.save(session, f"{tmp_path}/third")
        assert not files_of_first & found_in(tmp_path)


WRITE_AND_STOP = """
import os, sys
import numpy as np, tensorflow as tf
import group_embedding as ge
from checkpoint import test_leftovers as test

tables, checkpoint = test.make()
write = tf.raw_ops.SaveV2

def wait(**kwargs):
    print("written", flush=True)
    sys.stdin.readline()
    return write(**kwargs)

tf.raw_ops.SaveV2 = wait  # tables have been written, the index has not
print(checkpoint.write(sys.argv[1] + "/slow"), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def slow_process(tmp_path):
    """One that has written its tables and waits before it writes the index."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [sys.executable, "-c", WRITE_AND_STOP, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert child.stdout.readline() == "written\n"
    yield child
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


@pytest.mark.slow
def test_a_save_in_another_process_is_not_touched_and_is_swept_when_that_is_killed(
    slow_process, tmp_path
):
    # Given another process within a save
    slow = files.present(f"{tmp_path}/slow")
    assert len(slow) == 3
    # When this one saves there, twice, and another time after the other has been killed
    _, checkpoint = make()
    for number in range(2):
        checkpoint.write(f"{tmp_path}/own_{number}")
        assert files.present(f"{tmp_path}/slow") == slow
    slow_process.send_signal(signal.SIGKILL)
    slow_process.wait()
    checkpoint.write(f"{tmp_path}/own_2")
    # Then its files are there as long as it is
    assert files.present(f"{tmp_path}/slow") == []
    assert all(len(files.present(f"{tmp_path}/own_{number}")) == 3 for number in range(3))


def test_a_save_in_another_process_completes(slow_process, tmp_path):
    _, checkpoint = make()
    checkpoint.write(f"{tmp_path}/own")
    slow_process.stdin.write("\n")
    slow_process.stdin.flush()
    assert slow_process.stdout.readline() == f"{tmp_path}/slow\n"

    tables, again = make(5)
    again.read(f"{tmp_path}/slow")

    assert [int(table.total_count()) for table in tables] == [50] * 3


def test_a_file_that_somebody_writes_is_not_touched(tmp_path):
    path = tmp_path / "model-7.data-rabcd-of-efghi.tmp"
    path.write_bytes(b"rows")
    _, checkpoint = make()

    with open(path, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        checkpoint.write(f"{tmp_path}/one")
        assert path.exists()
    checkpoint.write(f"{tmp_path}/two")

    assert not path.exists()


def can_be_swept(folder):
    """Returns whether another process may remove files of checkpoints without an index."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


@pytest.mark.parametrize("change", ["made_again", "working_directory"])
def test_a_path_that_leads_to_another_folder_is_locked_there(change, tmp_path, monkeypatch):
    # Given tables that hold their checkpoint in a folder, to whose path another folder has come,
    # with what a killed process left there
    (tmp_path / "first" / "saves").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "first")
    earlier, checkpoint = make()
    checkpoint.write("saves/model")
    if change == "made_again":
        shutil.rmtree("saves")
    else:
        (tmp_path / "second").mkdir()
        monkeypatch.chdir(tmp_path / "second")
    Path("saves").mkdir()
    leave(Path("saves"), "model-7")
    write, seen = tf.raw_ops.SaveV2, []

    def look(**kwargs):
        seen.append((can_be_swept("saves"), len(files.present("saves/model"))))
        return write(**kwargs)

    # When other tables are saved under the same name
    later, checkpoint = make()
    with monkeypatch.context() as patched:
        patched.setattr(tf.raw_ops, "SaveV2", look)
        checkpoint.write("saves/model")
    # Then no other process may remove their files before the index is written, and the files of the
    # killed process are gone
    assert seen == [(False, 3)]
    assert files.present("saves/model-7") == []
    # And the folder stays locked when the earlier tables are gone
    del earlier
    gc.collect()
    assert not can_be_swept("saves") and len(files.present("saves/model")) == 3
    # And the folder is free when the tables that hold it are gone
    del later, checkpoint
    gc.collect()
    assert can_be_swept("saves")


@pytest.mark.parametrize("changes", [False, True], ids=["full", "changes"])
def test_a_save_that_failed_goes_with_the_next_one_of_the_process(changes, tmp_path, monkeypatch):
    # Given a full save, and one that fails when its tables are written
    tables, checkpoint = make()
    checkpoint.write(f"{tmp_path}/first")
    tables[0].insert([1], [[2.0] * 4])

    def fail(**kwargs):
        raise OSError("no space left")

    def save(path):
        if changes:
            with ge.checkpoint.changes_only():
                return checkpoint.write(path)
        return checkpoint.write(path)

    with monkeypatch.context() as patched:
        patched.setattr(tf.raw_ops, "SaveV2", fail)
        with pytest.raises(OSError):
            save(f"{tmp_path}/failed")
    left = files.present(f"{tmp_path}/failed")
    assert len(left) == (6 if changes else 3)
    # When the next one is written (the next but one, if its changes are added to files of the first
    # save that the failed one shares)
    path = save(f"{tmp_path}/next")
    if changes:
        path = save(f"{tmp_path}/next_but_one")
    # Then nothing of it is there, and the others are whole
    assert not files.present(f"{tmp_path}/failed")
    for whole, value in ((f"{tmp_path}/first", 1.0), (path, 2.0)):
        checkpoint.read(whole)
        found = tables[0].export()
        assert found.values.numpy()[found.keys.numpy().tolist().index(1), 0] == value


def test_a_disk_that_is_full_leaves_no_file(tmp_path):
    # Given a process that may write files of 100 KB, and a table of more
    script = """
import os, resource, signal, sys
import numpy as np, tensorflow as tf
import group_embedding as ge
from checkpoint import test_leftovers as test

tables, checkpoint = test.make(50_000)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoint.write(sys.argv[1] + "/model")
except tf.errors.OpError as error:
    print(error.message)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ).stdout

    assert "cannot write" in said and "File too large" in said
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
