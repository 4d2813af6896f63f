"""Files of several ranks, saves and tables, swapped: refused by a restore and by `verify`."""

import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.checkpoint.__main__ import main

NAMES = ("user", "item", "shop")
KEYS = np.arange(40)


def make():
    option = ge.EmbeddingVariableOption(init_option=ge.InitializerOption(default_value_dim=2))
    tables = [ge.get_embedding_variable(name, 2, ev_option=option) for name in NAMES]
    return tables, tf.train.Checkpoint(**dict(zip(NAMES, tables)))


def insert(tables, value):
    for number, table in enumerate(tables):
        table.insert(KEYS, tf.fill([len(KEYS), 2], float(value + number)))


def save_twice(folder):
    """Paths of two checkpoints that two ranks wrote, the second one with changes."""
    ge.enable_distributed_strategy()
    tables, checkpoint = make()
    rank = ge.exchange.current().rank
    insert(tables, 1)
    first = checkpoint.write(f"{folder}/first_of_{rank}")
    insert(tables, 2)
    with ge.checkpoint.snapshots.changes_only():
        return first, checkpoint.write(f"{folder}/second_of_{rank}")


def test_every_pair_of_files_of_two_ranks_is_refused(two_ranks, tmp_path, capsys):
    # Given two saves by two ranks of three tables; the second one has changes
    paths = two_ranks.run(save_twice, str(tmp_path))[0]
    own = {
        file["path"]: (path, table["table"])
        for path in paths
        for table in files.tables(path)
        for file in table["files"]
    }
    content = {name: Path(name).read_bytes() for name in own}
    assert len(set(content.values())) == 12
    tables, checkpoint = make()
    insert(tables, 9)
    # (of one length: others are refused by that alone)
    pairs = [
        (a, b)
        for a, b in itertools.permutations(own, 2)
        if content[a] != content[b] and len(content[a]) == len(content[b])
    ]
    assert len(pairs) > 20
    for name, other in pairs:
        # When one stands in the place of another
        path, table = own[name]
        os.replace(name, tmp_path / "away")
        shutil.copy(other, name)
        # Then both refuse it by name, and one process has changed nothing
        with pytest.raises(tf.errors.DataLossError) as error:
            checkpoint.read(path)
        assert main(["verify", path]) == 1
        os.replace(tmp_path / "away", name)
        assert f"table '{table}'" in str(error.value) and name in str(error.value)
        assert f"'{name}' is whole, but not the one" in capsys.readouterr().out
    assert [table.export().values[0, 0] for table in tables] == [9, 10, 11]
    # And each is as it was
    for path, value in zip(paths, (1, 2)):
        checkpoint.read(path)
        assert [table.export().values.numpy().max() for table in tables] == [
            value,
            value + 1,
            value + 2,
        ]
