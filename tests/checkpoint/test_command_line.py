"""python -m group_embedding.checkpoint."""

import sys

import checkpoint_cases as cases
import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.checkpoint import files
from group_embedding.checkpoint.__main__ import main

v1 = tf.compat.v1


@pytest.fixture
def saved(tmp_path):
    """A checkpoint with changes."""
    batches = cases.batches()
    with tf.Graph().as_default(), v1.Session() as session:
        model = cases.build()
        erase = model.tables[0].erase(batches[0].reshape(-1)[:5])
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        cases.train(session, model, batches[:5])
        saver.save(session, f"{tmp_path}/model", global_step=5)
        session.run(erase)
        cases.train(session, model, batches[5:6])
        return ge.checkpoint.save_changes(saver, session, f"{tmp_path}/model", global_step=6)


def test_inspect_says_what_a_checkpoint_holds(saved, tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 0  # the newest in the folder

    said = capsys.readouterr().out
    assert "table 'user', step 6" in said and "table 'deep/item'" in said
    assert "dim 4, float32" in said and "changes, part 1 of 1" in said
    assert "keys erased" in said and "[4] float32" in said


def test_verify_says_which_file_is_damaged(saved, capsys):
    assert main(["verify", saved]) == 0
    name = files.present(saved)[0]
    with open(name, "r+b") as file:
        file.seek(100)
        file.write(b"\xff\x00")

    assert main(["verify", saved]) == 1

    assert f"'{name}' is damaged" in capsys.readouterr().out


def test_export_writes_the_rows_after_changes(saved, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")

    assert main(["export", saved, "--table", "user", "--out", f"{tmp_path}/user.parquet"]) == 0

    found = parquet.read_table(f"{tmp_path}/user.parquet").to_pylist()
    expected = cases.content(saved)[0]["user"]
    assert {row["key"] for row in found} == set(expected) and len(found) == len(expected)
    for row in found:
        count, version, values, slots = expected[row["key"]]
        assert (row["count"], row["version"]) == (count, version)
        assert np.array(row["values"], np.float32).tobytes() == values
        for name, slot in slots.items():
            assert np.array(row[name], np.float32).tobytes() == slot


def test_export_without_pyarrow_says_what_to_install(saved, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(SystemExit, match="pyarrow is missing.*pip install"):
        main(["export", saved, "--table", "user", "--out", f"{tmp_path}/user.parquet"])


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["inspect", "no/such"], "checkpoint 'no/such'"),
        (["export", "{saved}", "--out", "x"], "expected --table, one of"),
        (["inspect", "{saved}", "--table", "cat"], "expected a table cat"),
    ],
)
def test_wrong_arguments_are_named(saved, arguments, words):
    with pytest.raises(SystemExit, match=words):
        main([argument.format(saved=saved) for argument in arguments])
