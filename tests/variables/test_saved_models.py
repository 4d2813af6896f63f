"""SavedModels of several keyed tables: each serves its own rows, however it is loaded."""

import gc
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.variables import EmbeddingVariable

v1 = tf.compat.v1
DIMS = (2, 3, 4)
NAMES = ("user", "shop/item", "brand")
KEYS = np.array([1, 5, -(2**40)])
DISK = ge.StorageType.DRAM_SSDHASH

# Prints what every folder serves to tf.saved_model.load and to the loader of sessions.
SERVE_ALL = """
import json, sys
import numpy as np, tensorflow as tf, group_embedding
v1 = tf.compat.v1
keys, folders = np.array(json.loads(sys.argv[1])), sys.argv[2:]
models = [tf.saved_model.load(folder) for folder in folders]
eager = [model.signatures["serving_default"](keys=tf.constant(keys)) for model in models]
for folder, served in zip(folders, eager):
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], folder).signature_def
        signature = signature["serving_default"]
        fetches = {name: output.name for name, output in signature.outputs.items()}
        in_session = session.run(fetches, {signature.inputs["keys"].name: keys})
    for found in (served, in_session):
        print(json.dumps([np.asarray(found[f"table_{t}"]).tolist() for t in range(3)]))
"""


def rows(first=0):
    """The rows of Tables: row i of table t is 100 t + 10 i + first."""
    return [
        100 * t + 10 * np.arange(len(KEYS))[:, None] + first + np.zeros(dim, np.float32)
        for t, dim in enumerate(DIMS)
    ]


class Tables(tf.Module):
    """Three keyed tables of different dims, and a function that looks keys up in all."""

    def __init__(self, names=NAMES, first=0, storage=None):
        super().__init__()
        option = ge.EmbeddingVariableOption(
            init_option=ge.InitializerOption(default_value_dim=1),
            storage_option=storage or ge.StorageOption(),
        )
        ones = tf.ones_initializer()
        self.tables = [
            EmbeddingVariable(name, dim, initializer=ones, ev_option=option)
            for name, dim in zip(names, DIMS)
        ]
        for table, of_table in zip(self.tables, rows(first)):
            table.insert(KEYS, of_table)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="keys")])
    def serve(self, keys):
        served = ge.group_embedding_lookup(self.tables, [keys] * len(self.tables))
        return {f"table_{t}": of_table for t, of_table in enumerate(served)}


def export(module, folder):
    tf.saved_model.save(module, str(folder), signatures=module.serve)
    return str(folder)


def assert_serves(model, expected):
    served = model.serve(tf.constant(KEYS))
    for t, of_table in enumerate(expected):
        np.testing.assert_array_equal(served[f"table_{t}"], of_table)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(Tables(), tmp_path_factory.mktemp("model") / "exported")


def test_each_table_serves_its_own_rows(exported):
    loaded = tf.saved_model.load(exported)

    assert_serves(loaded, rows())
    # And keys that it has not seen read what they start as
    unknown = loaded.serve(tf.constant([77], tf.int64))
    for t, dim in enumerate(DIMS):
        np.testing.assert_array_equal(unknown[f"table_{t}"], np.ones([1, dim]))


def test_every_loader_serves_every_table_in_a_new_process(exported, tmp_path):
    # Given exports of tables in memory and on disk, of tables of one name, and of a loaded model
    on_disk = [
        ge.StorageOption(DISK, storage_size=[1 << 20]),
        ge.StorageOption(DISK, str(tmp_path / "rows"), storage_size=[1 << 20]),
    ]
    folders = [
        exported,
        *(
            export(Tables([f"{name}_{i}" for name in NAMES], storage=option), tmp_path / f"disk{i}")
            for i, option in enumerate(on_disk)
        ),
        export(Tables(names=["same"] * 3), tmp_path / "same"),
        export(tf.saved_model.load(exported), tmp_path / "again"),
    ]
    # When a new process loads all of them, by both loaders
    gc.collect()
    served = subprocess.run(
        [sys.executable, "-c", SERVE_ALL, json.dumps(KEYS.tolist()), *folders],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    # Then all serve the same rows
    expected = [of_table.tolist() for of_table in rows()]
    found = [json.loads(line) for line in served.stdout.splitlines() if line.startswith("[[")]
    assert found == [expected] * (2 * len(folders))


def test_models_loaded_at_once_do_not_share_rows(exported, tmp_path):
    # Given two versions of a model, with tables of the same names
    other = export(Tables(first=5), tmp_path / "other")
    # When both are loaded, one of them twice
    first, second, third = (tf.saved_model.load(folder) for folder in (exported, other, exported))
    # Then each serves what it was exported with
    assert_serves(first, rows())
    assert_serves(second, rows(first=5))
    del first
    gc.collect()
    assert_serves(third, rows())


def test_the_tables_of_a_loaded_model_end_with_it(tmp_path):
    # Given an export of tables with folders for their rows on disk
    option = ge.StorageOption(DISK, str(tmp_path / "rows"), storage_size=[1 << 20])
    folder = export(Tables(storage=option), tmp_path / "exported")
    gc.collect()
    gc.collect()
    assert not list((tmp_path / "rows").iterdir())
    # When it is loaded twice, and both go
    first, second = tf.saved_model.load(folder), tf.saved_model.load(folder)
    assert_serves(first, rows())
    assert_serves(second, rows())
    assert len(list((tmp_path / "rows").iterdir())) == 2 * len(DIMS)
    del first, second
    gc.collect()
    gc.collect()  # of handles, which the first one lets go
    # Then the tables have gone too, with what they had on disk
    assert not list((tmp_path / "rows").iterdir())
