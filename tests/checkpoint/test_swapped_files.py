"""A file of another table or of another save in the place of a checkpoint's own is refused."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.checkpoint.__main__ import main

v1 = tf.compat.v1
DIMS = {"user": 4, "item": 4, "shop": 2}
VERSION_1 = Path(__file__).parent / "version_1"


class Saved:
    """Three tables in a session, their Saver, and saves of the same keys with other values: so that
    files of one kind and dim have one size."""

    def __init__(self, folder):
        option = ge.EmbeddingVariableOption(
            init_option=ge.InitializerOption(default_value_dim=2), filter_option=ge.CounterFilter(2)
        )
        self.session = v1.Session()
        self.tables = [
            ge.get_embedding_variable(name, dim, ev_option=option) for name, dim in DIMS.items()
        ]
        self.value = v1.placeholder(tf.float32, [])
        self.all_keys = self.insert(range(20))
        self.some_keys = self.insert(range(5))
        self.rows = [table.export() for table in self.tables]
        self.saver = v1.train.Saver(max_to_keep=None)
        self.session.run(v1.global_variables_initializer())
        self.paths = []
        for full in (1, 3):
            self.session.run(self.all_keys, {self.value: full})
            self.paths.append(self.saver.save(self.session, f"{folder}/model", full))
            self.session.run(self.some_keys, {self.value: full + 1})
            self.paths.append(
                ge.checkpoint.save_changes(self.saver, self.session, f"{folder}/model", full + 1)
            )

    def insert(self, keys):
        keys = np.array(keys)
        return [
            table.insert(keys, tf.fill([len(keys), dim], self.value + number))
            for number, (table, dim) in enumerate(zip(self.tables, DIMS.values()))
        ]

    def content(self):
        return [np.array(part).tolist() for rows in self.session.run(self.rows) for part in rows]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    with tf.Graph().as_default():
        made = Saved(tmp_path_factory.mktemp("saved"))
        with made.session:
            yield made


def test_every_pair_of_files_of_two_saves_and_three_tables_is_refused(saved, capsys, tmp_path):
    # Given two full saves and two of changes, of three tables
    own = {
        file["path"]: (path, table["table"])
        for path in saved.paths
        for table in files.tables(path)
        for file in table["files"]
    }
    content = {name: Path(name).read_bytes() for name in own}
    saved.session.run(saved.all_keys, {saved.value: 9})
    before = saved.content()
    pairs = [(a, b) for a, b in itertools.permutations(own, 2) if content[a] != content[b]]
    assert len({content[name] for name in own}) == 12 and len(pairs) > 200
    assert sum(len(content[a]) == len(content[b]) for a, b in pairs) > 50

    for name, other in pairs:
        # When one stands in the place of another
        path, table = own[name]
        os.replace(name, tmp_path / "away")
        shutil.copy(other, name)
        # Then a restore names the table and the file, and verify does
        with pytest.raises(tf.errors.DataLossError) as error:
            saved.saver.restore(saved.session, path)
        assert main(["verify", path]) == 1
        os.replace(tmp_path / "away", name)
        assert f"table '{table}'" in str(error.value) and name in str(error.value)
        assert "not the one that was saved with this checkpoint" in str(error.value)
        assert f"'{name}' is whole, but not the one" in capsys.readouterr().out

    # And no table has changed, and each checkpoint is as it was
    assert saved.content() == before
    for path, value in zip(saved.paths, (1, 2, 3, 4)):
        saved.saver.restore(saved.session, path)
        assert main(["verify", path]) == 0
        assert saved.session.run(saved.rows[0])[1].max() == value


RESTORE = """
import sys
import numpy as np
import tensorflow as tf
import group_embedding as ge

v1 = tf.compat.v1
option = ge.EmbeddingVariableOption(
    init_option=ge.InitializerOption(default_value_dim=2), filter_option=ge.CounterFilter(2)
)
with tf.Graph().as_default(), v1.Session() as session:
    tables = [ge.get_embedding_variable(n, 2, ev_option=option) for n in ("user", "item")]
    rows = [table.export() for table in tables]
    v1.train.Saver().restore(session, sys.argv[1])
    for found in session.run(rows):
        print({int(key): float(row[0]) for key, row in zip(found.keys, found.values)})
"""


def restored_by_another_process(path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TF_CPP_MIN_LOG_LEVEL": "0",
    }
    return subprocess.run(
        [sys.executable, "-c", RESTORE, path], env=environment, capture_output=True, text=True
    )


def test_checkpoints_of_format_version_1_are_restored_with_a_warning(capsys):
    # Given a checkpoint with changes that a release before this format wrote
    path = f"{VERSION_1}/model-2"
    # When it is restored
    found = restored_by_another_process(path)
    # Then its rows are there, and a line on each table says what version 1 lacks
    assert found.returncode == 0, found.stderr
    rows = [eval(line) for line in found.stdout.splitlines()]
    assert rows == [{1: 1, 2: 2, 3: 4, 4: 5}, {1: 10, 2: 20, 3: 40, 4: 50}]
    assert found.stderr.count("has files of format version 1") == 2
    assert main(["verify", path]) == 0
    assert capsys.readouterr().out.count("of format version 1") == 4


@pytest.mark.slow
def test_swapped_files_of_two_tables_of_format_version_1_are_refused(tmp_path):
    shutil.copytree(VERSION_1, tmp_path / "saved")
    path = f"{tmp_path}/saved/model-1"
    user, item = (table["files"][0]["path"] for table in files.tables(path))
    shutil.copy(user, item)

    found = restored_by_another_process(path)

    assert found.returncode != 0 and "not the one that was saved" in found.stderr
    assert main(["verify", path]) == 1
