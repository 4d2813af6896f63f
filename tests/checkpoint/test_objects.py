"""Keyed tables in checkpoints of objects and in SavedModels."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from checkpoint import checkpoint_cases as cases

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files

BATCHES = cases.batches()


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        tf.random.set_seed(1)
        option = ge.EmbeddingVariableOption(**cases.OPTIONS)
        self.table = ge.get_embedding_variable("objects", cases.DIM, ev_option=option)
        self.weights = tf.Variable(tf.ones([cases.DIM, 1]), name="weights")
        self.optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adam(0.01))
        self.optimizer.build([self.table, self.weights])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64)])
    def loss(self, keys):
        (rows,) = ge.group_embedding_lookup([self.table], [keys])
        return tf.reduce_sum(tf.matmul(tf.reduce_sum(rows, 1), self.weights) ** 2)

    def train(self, steps):
        variables = [self.table, self.weights]
        for keys in steps:
            with tf.GradientTape() as tape:
                loss = self.loss(keys)
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables))


def rows_of(path):
    return cases.content(path)[0]["objects"]


def test_training_goes_on_bit_for_bit(tmp_path):
    model = Model()
    checkpoint = tf.train.Checkpoint(model=model)
    model.train(BATCHES[:5])
    half = checkpoint.save(f"{tmp_path}/half")
    model.train(BATCHES[5:])
    expected = rows_of(checkpoint.save(f"{tmp_path}/whole"))

    checkpoint.restore(half).assert_consumed()
    assert rows_of(checkpoint.save(f"{tmp_path}/restored")) == rows_of(half)
    model.train(BATCHES[5:])

    assert rows_of(checkpoint.save(f"{tmp_path}/again")) == expected
    assert int(model.optimizer.iterations) == len(BATCHES)


def test_another_object_is_restored(tmp_path):
    model, other = Model(), Model()
    model.train(BATCHES[:5])
    path = tf.train.Checkpoint(model=model).write(f"{tmp_path}/model")

    tf.train.Checkpoint(model=other).read(path).assert_consumed()

    np.testing.assert_array_equal(other.loss(BATCHES[0]), model.loss(BATCHES[0]))
    assert other.table.total_count() == model.table.total_count()


def test_keys_are_evicted_by_the_steps_of_their_optimizer(tmp_path):
    # Given a table whose keys live for a step, and whose step nobody sets
    def make_table():
        option = ge.EmbeddingVariableOption(evict_option=ge.GlobalStepEvict(1))
        return ge.get_embedding_variable("objects", 4, ev_option=option)

    table, other = make_table(), make_table()
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))
    # When it is saved after three steps
    for keys in ([1, 2], [2, 3], [3, 4]):
        with tf.GradientTape() as tape:
            (rows,) = ge.group_embedding_lookup([table], [tf.constant(keys, tf.int64)])
            loss = tf.reduce_sum(rows**2)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    path = tf.train.Checkpoint(table=table).write(f"{tmp_path}/saved")
    # Then what was not trained in the last two is gone, and who restores it goes on counting
    tf.train.Checkpoint(table=other).read(path).assert_consumed()
    assert sorted(other.export().keys.numpy()) == [3, 4]
    assert int(other.trained_steps) == 3


def test_a_saved_model_of_tables_that_evict_by_steps(tmp_path):
    # Given tables that count their optimizer's steps, and a function that looks them up
    module = tf.Module()
    option = ge.EmbeddingVariableOption(evict_option=ge.GlobalStepEvict(1))
    module.tables = [
        ge.get_embedding_variable(f"objects_{dim}", dim, ev_option=option) for dim in (4, 2, 3)
    ]
    for table in module.tables:
        table.insert([7], [np.arange(table.shape[1]) + table.shape[1]])
    module.look_up = tf.function(
        lambda keys: ge.group_embedding_lookup(module.tables, [keys] * 3),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    # When they are exported and loaded
    tf.saved_model.save(module, f"{tmp_path}/exported")
    loaded = tf.saved_model.load(f"{tmp_path}/exported")
    # Then each serves its rows
    for rows, dim in zip(loaded.look_up(tf.constant([7], tf.int64)), (4, 2, 3)):
        np.testing.assert_array_equal(rows, [np.arange(dim) + dim])


def test_a_manager_removes_old_files(tmp_path):
    model = Model()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), tmp_path, 2)

    for keys in BATCHES[:4]:
        model.train([keys])
        manager.save()

    assert not files.present(f"{tmp_path}/ckpt-2")
    assert len(files.present(f"{tmp_path}/ckpt-3")) == 1
    assert tf.train.Checkpoint(model=model).restore(manager.latest_checkpoint).assert_consumed()


def test_one_name_may_be_saved_again_and_again(tmp_path):
    model = Model()
    checkpoint = tf.train.Checkpoint(model=model)

    for keys in BATCHES[:4]:
        model.train([keys])
        path = checkpoint.write(f"{tmp_path}/same")

    assert len(files.present(path)) <= 2  # those of the save before go with the next
    before = model.loss(BATCHES[0]).numpy()
    checkpoint.read(path).assert_consumed()
    assert model.loss(BATCHES[0]).numpy() == before


def test_damage_is_refused_before_anything_changes(tmp_path):
    model = Model()
    checkpoint = tf.train.Checkpoint(model=model)
    model.train(BATCHES[:3])
    path = checkpoint.write(f"{tmp_path}/model")
    model.train(BATCHES[3:])
    before, weights = model.loss(BATCHES[0]).numpy(), model.weights.numpy()
    (name,) = files.present(path)
    whole = Path(name).read_bytes()
    rng = np.random.default_rng(0)

    for bit in rng.integers(0, 8 * len(whole), 20).tolist():
        Path(name).write_bytes(cases.flip(whole, bit))
        with pytest.raises(tf.errors.DataLossError, match="table 'objects.*': file .*is damaged"):
            checkpoint.read(path)

    assert model.loss(BATCHES[0]).numpy() == before
    np.testing.assert_array_equal(model.weights, weights)


def test_a_saved_model_serves_all_rows_in_a_fresh_process(tmp_path):
    model = Model()
    model.train(BATCHES)
    expected = model.loss(BATCHES[3]).numpy()
    tf.saved_model.save(model, f"{tmp_path}/model")
    np.save(f"{tmp_path}/keys.npy", BATCHES[3])

    script = """
import sys, numpy as np, tensorflow as tf, group_embedding
folder, v1 = sys.argv[1], tf.compat.v1
keys = np.load(folder + "/keys.npy")
model = tf.saved_model.load(folder + "/model")
print(model.loss(keys).numpy().tobytes().hex())
with tf.Graph().as_default(), v1.Session() as session:
    signature = v1.saved_model.load(session, ["serve"], folder + "/model").signature_def
    signature = signature["serving_default"]
    (read,), (fed,) = signature.outputs.values(), signature.inputs.values()
    print(session.run(read.name, {fed.name: keys}).tobytes().hex())
"""
    served = subprocess.run(
        [sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True, check=True
    )

    assert served.stdout.split()[-2:] == [expected.tobytes().hex()] * 2
