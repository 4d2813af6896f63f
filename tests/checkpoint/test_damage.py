"""Damaged checkpoints are refused before anything changes."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from checkpoint import checkpoint_cases as cases

from group_embedding.checkpoint import background
from group_embedding.checkpoint import checkpoint_files as files

v1 = tf.compat.v1
SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))
NUM_FLIPS, NUM_TRUNCATIONS = 1000, 200
BATCHES = cases.batches()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A session, its Saver and a checkpoint of full rows and changes, from which it has gone on."""
    folder = tmp_path_factory.mktemp("saved")
    with tf.Graph().as_default(), v1.Session() as session:
        model = cases.build()
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        cases.train(session, model, BATCHES[:3])
        saver.save(session, f"{folder}/model", global_step=3)
        cases.train(session, model, BATCHES[3:6])
        path = background.save_changes(saver, session, f"{folder}/model", global_step=6)
        cases.train(session, model, BATCHES[6:])
        yield session, saver, path, cases.content(saver.save(session, f"{folder}/after"))


def damages(rng, path):
    """(file, what it holds instead): flips and truncations over all files of keyed tables."""
    paths = files.present(path)
    whole = {path: Path(path).read_bytes() for path in paths}
    sizes = np.array([len(whole[path]) for path in paths])
    for _ in range(NUM_FLIPS):
        name = paths[rng.choice(len(paths), p=sizes / sizes.sum())]
        yield name, cases.flip(whole[name], int(rng.integers(8 * len(whole[name]))))
    for _ in range(NUM_TRUNCATIONS):
        name = paths[rng.integers(len(paths))]
        yield name, whole[name][: rng.integers(len(whole[name]))]


def refused(saver, session, path):
    with pytest.raises(tf.errors.DataLossError) as error:
        saver.restore(session, path)
    return str(error.value)


def test_flipped_bits_and_truncations_are_refused_and_change_nothing(saved, tmp_path):
    session, saver, path, before = saved
    print("seed", SEED)
    table_of = {
        file["path"]: table["table"] for table in files.tables(path) for file in table["files"]
    }

    for name, damaged in damages(np.random.default_rng(SEED), path):
        whole = Path(name).read_bytes()
        Path(name).write_bytes(damaged)
        message = refused(saver, session, path)
        Path(name).write_bytes(whole)
        assert name in message and f"table '{table_of[name]}'" in message

    assert cases.content(saver.save(session, f"{tmp_path}/after")) == before
    saver.restore(session, path)  # which was whole again


def test_flipped_bits_of_a_manifest_are_refused(saved, tmp_path):
    session, saver, path, before = saved
    data = f"{path}.data-00000-of-00001"
    whole = Path(data).read_bytes()
    rng = np.random.default_rng(SEED)
    manifests = files.manifests(path).values()

    for manifest in manifests:
        at = whole.index(manifest)
        for bit in rng.integers(8 * at, 8 * (at + len(manifest)), 30).tolist():
            Path(data).write_bytes(cases.flip(whole, bit))
            refused(saver, session, path)
    Path(data).write_bytes(whole)

    assert len(manifests) == 2


def test_a_file_that_is_missing_is_named(saved, tmp_path):
    session, saver, path, _ = saved
    name = files.present(path)[0]
    os.rename(name, f"{tmp_path}/away")

    message = refused(saver, session, path)

    os.rename(f"{tmp_path}/away", name)
    assert f"cannot open '{name}'" in message


def test_a_file_of_another_save_is_refused(saved, tmp_path):
    session, saver, path, _ = saved
    other = saver.save(session, f"{tmp_path}/other")
    of_table = {t["table"]: t["files"] for t in files.tables(path)}["user"]
    name = next(file["path"] for file in of_table if not file["changes_only"])
    foreign = {t["table"]: t["files"] for t in files.tables(other)}["user"][0]["path"]
    os.rename(name, f"{tmp_path}/away")
    os.link(foreign, name)

    message = refused(saver, session, path)

    os.unlink(name)
    os.rename(f"{tmp_path}/away", name)
    assert "not the one that was saved with this checkpoint" in message
