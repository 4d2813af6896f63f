"""Checkpoints in a folder that hosts share, and in one that each host has for itself: then every
way to save fails, on all ranks, with a sentence that says so."""

from pathlib import Path

import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import sok
from group_embedding.ranks.sharding.make_sharded_table import make_table

v1 = tf.compat.v1
IS_KERAS_2 = not hasattr(tf.keras, "ops")
KEYS = [1, 2, 3, 4, 5, 6, 7]


def keyed(name, **options):
    return ge.get_embedding_variable(name, 2, initializer=v1.ones_initializer(), **options)


def by_row(name):
    def make(shape, initializer):
        return v1.get_variable(name, shape, tf.float32, initializer)

    return make_table((9, 2), v1.ones_initializer(), make)


def train_once(tables):
    """An op that trains; eagerly, trains."""
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(v1.train.GradientDescentOptimizer(0.1)))

    def loss():
        rows = ge.group_embedding_lookup(tables, [tf.constant(KEYS, tf.int64)] * len(tables))
        return tf.add_n([tf.reduce_sum(of_table) for of_table in rows])

    step = v1.train.get_or_create_global_step()
    return optimizer.minimize(loss if tf.executing_eagerly() else loss(), step)


def path_of_rank(folder):
    """A checkpoint of objects: ranks other than the first write one from which nothing is
    restored."""
    rank = ge.exchange.current().rank
    return f"{folder}/model" if rank == 0 else f"{folder}/of_{rank}/model"


def checkpoint(folder):
    tables = [keyed("user"), keyed("item")]
    ge.group_embedding_lookup(tables, [tf.constant(KEYS, tf.int64)] * 2)
    return tf.train.Checkpoint(tables=tables).save(path_of_rank(folder))


def checkpoint_of_changes(folder):
    checkpoint = tf.train.Checkpoint(table=keyed("user"))
    return ge.checkpoint.save_changes(checkpoint, path_of_rank(folder))


def table_of_one_rank(folder):
    last = ge.exchange.current().num_ranks - 1
    table = keyed("user", placement=f"localized:{last}")
    return tf.train.Checkpoint(table=table).save(path_of_rank(folder))


def save_weights(folder):
    table = ge.TableConfig("user", None, 2)
    model = tf.keras.Sequential([ge.layers.GroupEmbedding([ge.FeatureConfig("user", table)])])
    model({"user": tf.ragged.constant([KEYS], dtype=tf.int64)})
    model.save_weights(path_of_rank(folder), save_format="tf")


def dump(folder):
    sok.dump(folder, sok.DynamicVariable(2, name="user"))


def _in_session(folder, tables, make_saver, save=None):
    with tf.Graph().as_default(), v1.Session() as session:
        train = train_once(tables())
        saver = make_saver()
        session.run(v1.global_variables_initializer())
        session.run(train)
        (save or (lambda saver, *args: saver.save(*args)))(saver, session, f"{folder}/model")


def saver(folder):
    _in_session(folder, lambda: [keyed("user"), by_row("item")], ge.Saver)


def saver_of_rows(folder):
    _in_session(folder, lambda: [by_row("user"), by_row("item")], ge.Saver)


def saver_of_changes(folder):
    _in_session(folder, lambda: [keyed("user")], ge.Saver, ge.checkpoint.save_changes)


def stock_saver(folder):
    _in_session(folder, lambda: [keyed("user"), keyed("item")], v1.train.Saver)


def hook(folder):
    with tf.Graph().as_default():
        train = train_once([keyed("user"), by_row("item")])
        hooks = [
            ge.checkpoint.CheckpointSaverHook(folder, save_steps=2),
            v1.train.StopAtStepHook(last_step=2),
        ]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(train)


CASES = [checkpoint, checkpoint_of_changes, table_of_one_rank, dump]
CASES += [saver, saver_of_rows, saver_of_changes, stock_saver, hook]
if IS_KERAS_2:
    CASES.append(save_weights)
CASES = {case.__name__: case for case in CASES}


def save(cases, folder):
    """{case: the error of saving, or None}."""
    ge.enable_distributed_strategy(timeout_seconds=20)
    found = {}
    for case in cases:
        Path(folder, case).mkdir(exist_ok=True)
        try:
            CASES[case](f"{folder}/{case}")
            found[case] = None
        except (tf.errors.OpError, OSError) as error:
            found[case] = str(error)
        tf.keras.backend.clear_session()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "where, cases",
    [
        pytest.param("ab", list(CASES), marks=pytest.mark.soak),
        ("aabb", ["checkpoint", "saver"]),
        pytest.param("abc", ["checkpoint", "saver"], marks=pytest.mark.soak),
    ],
)
def test_folders_of_one_name_are_refused(make_bed, start_job, tmp_path, where, cases):
    # Given a folder of one name, which each host has for itself
    folder = tmp_path / "runs"
    folder.mkdir()
    bed = make_bed(len(set(where)), own_folders=[folder])

    # When ranks save
    ranks = start_job(bed, where, save, cases, str(folder)).results()

    # Then the error of each names the host that does not see what another one wrote
    for case in cases:
        errors = {of_rank[case] for of_rank in ranks}
        assert None not in errors, f"{case} succeeded on some rank"
        for error in errors:
            assert "does not see the file that rank" in error, (case, error)
            assert str(folder) in error and "the folder must be shared by all hosts" in error
            assert "(host a)" in error


@pytest.mark.soak
def test_a_shared_folder_is_taken(make_bed, start_job, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()

    ranks = start_job(make_bed(2), "ab", save, list(CASES), str(folder)).results()

    assert ranks == [dict.fromkeys(CASES)] * 2
    assert all(any(Path(folder, case).glob("*.index")) for case in CASES)
