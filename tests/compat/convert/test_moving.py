"""Tables of other libraries into checkpoints, into tables, and on the command line."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.convert import __main__ as command

SAMPLES = Path(__file__).with_name("samples")
USERS = np.arange(28, dtype=np.float32).reshape(7, 4)
KEYS = [7, -3, 2**40, 11, 12, 13, 100]


def users():
    return ge.convert.open_tables("tfra", str(SAMPLES / "tfra_files"))


def started(prefix, name, dim):
    """A keyed table that starts from a table of a checkpoint."""
    option = ge.EmbeddingVariableOption(ckpt=ge.CheckpointOption(str(prefix), name))
    return ge.get_embedding_variable(f"started_{name}", dim, ev_option=option)


def test_checkpoint_that_a_table_starts_from(tmp_path):
    # Given tables of two libraries, when they are written to one checkpoint:
    (tmp_path / "items.txt").write_text("3 1 2\n4 5 6\n")
    tables = [*users(), *ge.convert.open_tables("text", str(tmp_path / "items.txt"))]
    seen = []
    names = ge.convert.write_checkpoint(
        tables, tmp_path / "new" / "moved", lambda *step: seen.append(step)
    )
    # Then tables start from its rows, and the progress ends with all of them.
    assert names == ["users", "items"]
    prefix = tmp_path / "new" / "moved"
    np.testing.assert_array_equal(started(prefix, "users", 4).sparse_read(KEYS), USERS)
    assert started(prefix, "items", 2).sparse_read([4, 3]).numpy().tolist() == [[5, 6], [1, 2]]
    assert ("users", 7, 7) in seen and seen[-1] == ("items", 2, 2)


def test_counts_and_versions_come_along(tmp_path):
    # Given a table of DeepRec with counts and versions, when a table starts from it:
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "old"),
        tensor_names=["user-keys", "user-values", "user-freqs", "user-versions"],
        shape_and_slices=[""] * 4,
        tensors=[
            tf.constant([8, 9], tf.int64),
            tf.constant([[0.5], [1.5]]),
            tf.constant([30, 40], tf.int64),
            tf.constant([5, 6], tf.int64),
        ],
    )
    tables = ge.convert.open_tables("deeprec", str(tmp_path / "old"))
    ge.convert.write_checkpoint(tables, tmp_path / "moved")
    user = started(tmp_path / "moved", "user", 1)
    # Then it has both.
    assert user.get_frequency([9, 8]).numpy().tolist() == [40, 30]
    assert user.get_version([9, 8]).numpy().tolist() == [6, 5]
    # And so has a table that they are loaded into.
    loaded = ge.get_embedding_variable("loaded_user", 1)
    assert ge.convert.load_table(loaded, tables[0]) == 2
    assert loaded.get_frequency([9, 8]).numpy().tolist() == [40, 30]


def test_bfloat16_keeps_its_bits(tmp_path):
    tables = ge.convert.open_tables("torchrec", str(SAMPLES / "torchrec_bfloat16.pt"))
    ge.convert.write_checkpoint(tables, tmp_path / "moved")
    option = ge.EmbeddingVariableOption(ckpt=ge.CheckpointOption(str(tmp_path / "moved"), "users"))
    table = ge.get_embedding_variable(
        "users_in_16_bits", 4, value_dtype=tf.bfloat16, ev_option=option
    )
    rows = tf.cast(table.sparse_read(tf.range(5, dtype=tf.int64)), tf.float32)
    np.testing.assert_array_equal(rows, np.arange(20.0).reshape(5, 4))


def test_rows_of_a_keras_layer():
    # Given a layer with a table by row number and one by key:
    layer = ge.layers.GroupEmbedding(
        [
            ge.FeatureConfig("user", ge.TableConfig("users", 6, 4)),
            ge.FeatureConfig("item", ge.TableConfig("products", None, 2)),
        ]
    )
    layer.build(None)
    before = tf.convert_to_tensor(layer.tables["users"]).numpy()
    # When the tables of a state dict are loaded into it:
    for table in ge.convert.open_tables("torchrec", str(SAMPLES / "torchrec.pt")):
        ge.convert.load_table(layer.tables[table.name], table)
    # Then it looks them up; a row that was not saved is as before.
    found = layer({"user": tf.constant([4, 0]), "item": tf.constant([6, 1])})
    np.testing.assert_array_equal(found["user"], np.arange(20.0).reshape(5, 4)[[4, 0]])
    np.testing.assert_array_equal(found["item"], [[-3.0, -3.25], [-0.5, -0.75]])
    np.testing.assert_array_equal(tf.convert_to_tensor(layer.tables["users"]).numpy()[5], before[5])


def test_refused_tables(tmp_path):
    with pytest.raises(ValueError, match=r"'users': expected a variable of shape \[rows, 4\], got"):
        ge.convert.load_table(tf.Variable(tf.zeros([10, 3])), users()[0])
    with pytest.raises(ValueError, match="expected keys from 0 to 9, the row numbers of"):
        ge.convert.load_table(tf.Variable(tf.zeros([10, 4])), users()[0])
    with pytest.raises(ValueError, match="expected tables of different names, got"):
        ge.convert.write_checkpoint([*users(), *users()], tmp_path / "moved")
    ge.convert.write_checkpoint(users(), tmp_path / "moved")
    with pytest.raises(FileExistsError, match="expected a new checkpoint, got one that exists"):
        ge.convert.write_checkpoint(users(), tmp_path / "moved")


def test_nothing_is_left_of_a_checkpoint_that_failed(tmp_path):
    # Given a good table, and one that turns out to be damaged as it is read:
    (tmp_path / "bad.txt").write_text("1 0.5\n2 x\n")
    tables = [*users(), *ge.convert.open_tables("text", str(tmp_path / "bad.txt"))]
    (tmp_path / "new").mkdir()
    with pytest.raises(ValueError, match="bad.txt, near line 1: expected numbers"):
        ge.convert.write_checkpoint(tables, tmp_path / "new" / "moved")
    # Then no file of it is left.
    del tables
    assert not list((tmp_path / "new").iterdir())


def test_command_line(tmp_path):
    # Given the files of TFRA, when the command lists and then writes them:
    run = [sys.executable, "-m", "group_embedding.convert", "tfra", SAMPLES / "tfra_files"]
    out = tmp_path / "moved"
    done = subprocess.run(
        [*map(str, run), "--out", str(out), "--rename", "users=members"],
        capture_output=True,
        text=True,
    )
    # Then it says what it did, in lines of its own alone, and the checkpoint has the table.
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "members: 7 rows of dim 4, float32",
        f"{out}: checkpoint with 1 tables",
    ]
    np.testing.assert_array_equal(started(out, "members", 4).sparse_read(KEYS), USERS)


def test_command_writes_a_vocabulary(tmp_path, capsys):
    (tmp_path / "words.txt").write_text("2 1\nthe 1\na 2\n")
    vocabulary = tmp_path / "vocabulary.txt"
    command.main(
        ["text", str(tmp_path / "words.txt"), "--keys", "lines", "--vocabulary", str(vocabulary)]
    )
    assert vocabulary.read_text() == "the\na\n"
    assert "words: 2 rows of dim 1, float32" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["tfra", str(SAMPLES / "tfra_files"), "--table", "x"], "expected a table 'x', got users"),
        (["tfra", "/nowhere/model"], "/nowhere/model.index: expected a file, got none"),
        (
            ["text", "/nowhere/x.txt", "--key-dtype", "int32"],
            "--key-dtype is of hugectr and tfra, not text",
        ),
        (["caffe", "x"], "expected one of checkpoint, deeprec"),
        (["hugectr", "/nowhere"], "No such file or directory"),
    ],
)
def test_command_says_what_is_wrong(arguments, says):
    with pytest.raises(SystemExit, match=f"group_embedding: .*{says}"):
        command.main(arguments)
