"""Tables that start from the rows of a checkpoint."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from checkpoint import checkpoint_cases as cases
from variables import storages

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files

v1 = tf.compat.v1
DIM = cases.DIM
KEYS = np.array([7, -1, 2**62, -(2**63)])
ROWS = np.arange(len(KEYS) * DIM, dtype=np.float32).reshape(-1, DIM)


@pytest.fixture(params=["objects", "saver"])
def saved(request, tmp_path):
    """A checkpoint that has ROWS of KEYS, counts and versions, and the name that they have."""
    if request.param == "objects":
        table = ge.get_embedding_variable("user", DIM)
        table.insert(KEYS, ROWS, versions=KEYS % 5, freqs=KEYS % 3)
        return tf.train.Checkpoint(model=table).write(f"{tmp_path}/objects"), "model"
    with tf.Graph().as_default(), v1.Session() as session:
        table = ge.get_embedding_variable("deep/user", DIM)
        insert = table.insert(KEYS, ROWS, versions=KEYS % 5, freqs=KEYS % 3)
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        session.run(insert)
        return saver.save(session, f"{tmp_path}/saver"), "deep/user"


def starting(path, name=None, always=False, **options):
    ckpt = ge.CheckpointOption(path, name, always)
    return ge.EmbeddingVariableOption(ckpt=ckpt, **options)


def assert_is_start(export):
    order = np.argsort(KEYS)
    np.testing.assert_array_equal(export.keys, KEYS[order])
    np.testing.assert_array_equal(export.values, ROWS[order])
    np.testing.assert_array_equal(export.versions, (KEYS % 5)[order])
    np.testing.assert_array_equal(export.freqs, (KEYS % 3)[order])


@pytest.mark.parametrize("storage", storages.ALL)
def test_a_table_starts_from_a_keyed_table(saved, storage):
    option = starting(*saved, storage_option=storage)

    table = ge.get_embedding_variable("other", DIM, ev_option=option)
    with tf.Graph().as_default(), v1.Session() as session:
        export = ge.get_embedding_variable("other", DIM, ev_option=option).export()
        session.run(v1.global_variables_initializer())
        in_a_graph = session.run(export)

    assert_is_start(table.export())
    assert_is_start(in_a_graph)


@pytest.mark.parametrize("storage", storages.ALL)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_a_table_starts_from_a_stock_variable(dtype, storage, tmp_path):
    stock = tf.Variable(tf.reshape(tf.range(12.0), [3, DIM]))
    path = tf.train.Checkpoint(old=stock).save(f"{tmp_path}/model")

    table = ge.get_embedding_variable(
        "user",
        DIM,
        value_dtype=dtype,
        ev_option=starting(str(tmp_path), "old", storage_option=storage),
    )

    assert path.endswith("model-1")
    export = table.export()
    assert export.keys.numpy().tolist() == [0, 1, 2]
    np.testing.assert_array_equal(tf.cast(export.values, tf.float32), stock)


def test_slots_and_new_keys_are_those_of_the_new_training(tmp_path):
    first = ge.get_embedding_variable("user", DIM, initializer=tf.ones_initializer())
    model = tf.Module()
    model.table, model.optimizer = first, ge.optimizers.wrap(tf.keras.optimizers.Adam(0.5))
    keys = tf.constant([[1, 2]], tf.int64)

    def step(table, optimizer):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ge.group_embedding_lookup([table], [keys])[0] ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    step(first, model.optimizer)
    path = tf.train.Checkpoint(model).write(f"{tmp_path}/first")
    option = starting(path, "table")
    second = ge.get_embedding_variable(
        "user", DIM, initializer=tf.zeros_initializer(), ev_option=option
    )
    step(second, ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))
    path = tf.train.Checkpoint(table=second).write(f"{tmp_path}/second")

    (kept,) = cases.content(path)[0].values()
    assert len(kept) == 2 and len({tuple(slots) for *_, slots in kept.values()}) == 1
    assert not any("adam" in slot for *_, slots in kept.values() for slot in slots)
    np.testing.assert_array_equal(
        second.sparse_read(tf.constant([9], tf.int64)), np.zeros([1, DIM])
    )


@pytest.mark.parametrize("always", [False, True])
def test_what_a_restore_of_another_checkpoint_brings(always, saved, tmp_path):
    table = ge.get_embedding_variable("user", DIM, ev_option=starting(*saved, always=always))
    checkpoint = tf.train.Checkpoint(user=table)
    table.insert([5], np.ones([1, DIM]))
    path = checkpoint.write(f"{tmp_path}/trained")
    table.erase([5, -1])

    checkpoint.read(path).assert_consumed()

    if always:
        assert_is_start(table.export())
    else:
        assert set(table.export().keys.numpy().tolist()) == {5, *KEYS.tolist()}


@pytest.mark.parametrize("always", [False, True])
def test_what_a_saver_brings(always, saved, tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        table = ge.get_embedding_variable("user", DIM, ev_option=starting(*saved, always=always))
        insert, export = table.insert([5], np.ones([1, DIM])), table.export()
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        session.run(insert)
        path = saver.save(session, f"{tmp_path}/trained")

        saver.restore(session, path)

        if always:
            assert_is_start(session.run(export))
        else:
            assert set(session.run(export).keys.tolist()) == {5, *KEYS.tolist()}


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
@pytest.mark.parametrize("always", [False, True])
def test_an_estimator_that_resumes(always, saved, tmp_path):
    def model_fn(features, labels, mode):
        step = v1.train.get_or_create_global_step()
        table = ge.get_embedding_variable("user", DIM, ev_option=starting(*saved, always=always))
        (rows,) = ge.group_embedding_lookup([table], [features])
        loss = tf.reduce_sum(rows**2)
        train = ge.optimizers.wrap(v1.train.GradientDescentOptimizer(0.5)).minimize(loss, step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def train(key):
        estimator = tf.estimator.Estimator(model_fn, str(tmp_path / "model"))
        keys = tf.data.Dataset.from_tensors
        estimator.train(lambda: keys(tf.constant([key], tf.int64)).map(lambda x: (x, x)))
        return cases.content(estimator.latest_checkpoint())[0]["user"]

    first, second = train(5), train(6)

    assert set(first) == {5, *KEYS.tolist()}
    assert set(second) == {*([] if always else [5]), 6, *KEYS.tolist()}


def test_a_damaged_start_is_refused(saved, tmp_path):
    (name,) = files.present(saved[0])
    Path(name).write_bytes(cases.flip(Path(name).read_bytes(), 8 * 100))

    with pytest.raises(tf.errors.DataLossError, match="table 'user': file .*is damaged"):
        ge.get_embedding_variable("user", DIM, ev_option=starting(*saved))


@pytest.mark.parametrize(
    "dim, name, error, message",
    [
        (DIM, "nobody", ValueError, "table 'user': expected .* rows of dim 4 named 'nobody', it"),
        (8, None, tf.errors.InvalidArgumentError, "table 'user'.*expected dim 8, got 4"),
    ],
)
def test_rows_that_are_not_there(dim, name, error, message, saved):
    with pytest.raises(error, match=message):
        ge.get_embedding_variable("user", dim, ev_option=starting(saved[0], name or saved[1]))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"init_data_source": "odps://x"}, "expected init_data_source to be None.*feature store"),
        ({"tensor_name_in_ckpt": "x"}, "expected ckpt_to_load_from"),
        ({"ckpt_to_load_from": 3}, "expected ckpt_to_load_from to be None or str, got 3"),
    ],
)
def test_options_that_name_nothing(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ge.CheckpointOption(**arguments)
