"""Keyed tables in `tf.train.Checkpoint`s that a thread writes."""

import time

import numpy as np
import pytest
import tensorflow as tf
from checkpoint import checkpoint_cases as cases

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files

KERAS_3 = getattr(tf.keras, "__version__", "2").startswith("3")
IN_BACKGROUND = tf.train.CheckpointOptions(enable_async=True)
BATCHES = cases.batches()


def begin_async(saver, *prefix):
    """Begins a save; the function that waits for its end gives its path."""
    path = saver.save(*prefix, options=IN_BACKGROUND)

    def end():
        saver.sync()
        return path

    return end


def begin_ours(saver, *prefix):
    return ge.checkpoint.BackgroundSave(saver, *prefix).result


BACKGROUND_SAVES = [
    pytest.param(
        begin_async,
        id="enable_async",
        marks=pytest.mark.skipif(KERAS_3, reason="Keras 3 copies its variables once"),
    ),
    pytest.param(begin_ours, id="BackgroundSave"),
]


class Model(tf.Module):
    """Two tables and a dense variable, which a step changes alike."""

    def __init__(self):
        super().__init__()
        self.step = tf.Variable(0, dtype=tf.int64, name="step")
        self.weights = tf.Variable(tf.ones([cases.DIM, 1]), name="weights")
        self.tables = [ge.get_embedding_variable(name, cases.DIM) for name in ("user", "item")]
        for table in self.tables:
            table.step = self.step
        self.optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adam(0.01))
        self.optimizer.build([*self.tables, self.weights])

    @tf.function
    def _loss(self, keys):
        rows = ge.group_embedding_lookup(self.tables, [keys, keys])
        return tf.reduce_sum(tf.matmul(tf.reduce_sum(tf.add_n(rows), 1), self.weights) ** 2)

    def train(self, steps):
        variables = [*self.tables, self.weights]
        for keys in steps:
            with tf.GradientTape() as tape:
                loss = self._loss(keys)
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            self.step.assign_add(1)


def content(path):
    """cases.content without the number of the checkpoint, which copies do not have."""
    tables, dense = cases.content(path)
    return tables, {name: value for name, value in dense.items() if "save_counter" not in name}


@pytest.mark.parametrize("begin", BACKGROUND_SAVES)
def test_each_save_holds_the_step_at_which_it_began(begin, tmp_path):
    model, expected, found = Model(), [], []
    waiting, background = (tf.train.Checkpoint(model=model) for _ in range(2))

    for n in range(3):
        model.train(BATCHES[3 * n : 3 * n + 2])
        expected.append(content(waiting.write(f"{tmp_path}/expected-{n}")))
        end = begin(background, f"{tmp_path}/found")
        model.train(BATCHES[3 * n + 2 : 3 * n + 3])
        found.append(content(end()))

    assert found == expected


@pytest.mark.parametrize("begin", BACKGROUND_SAVES)
def test_a_manager_saves_in_the_background(begin, tmp_path):
    model = Model()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), tmp_path, 2)

    for keys in BATCHES[:4]:
        model.train([keys])
        begin(manager)()
    saved = content(manager.latest_checkpoint)
    model.train(BATCHES[4:])
    tf.train.Checkpoint(model=model).read(
        manager.latest_checkpoint
    ).assert_existing_objects_matched()

    assert content(tf.train.Checkpoint(model=model).write(f"{tmp_path}/again")) == saved
    assert not files.present(f"{tmp_path}/ckpt-2")


@pytest.mark.parametrize("begin", BACKGROUND_SAVES)
def test_a_checkpoint_that_saved_in_the_background_restores(begin, tmp_path):
    model = Model()
    checkpoint = tf.train.Checkpoint(model=model)
    model.train(BATCHES[:3])
    path = begin(checkpoint, f"{tmp_path}/first")()
    expected = content(path)
    model.train(BATCHES[3:])

    checkpoint.restore(path)

    again = tf.train.Checkpoint(model=model).write(f"{tmp_path}/again")
    assert content(again) == expected


def test_the_number_of_a_checkpoint_is_asked_for_while_it_is_written(tmp_path):
    # Given a trained model, and Checkpoints of it that never saved
    model = Model()
    model.train(BATCHES[:2])
    for n in range(5):
        checkpoint = tf.train.Checkpoint(model=model)
        # When one is saved in the background, and asked at once how often it has saved
        save = ge.checkpoint.BackgroundSave(checkpoint, f"{tmp_path}/model-{n}")
        assert int(checkpoint.save_counter) in (0, 1)
        path = save.result()
        # Then it has once, and what it saved is all that another one needs
        assert int(checkpoint.save_counter) == 1
        tf.train.Checkpoint(model=model).restore(path).assert_consumed()


@pytest.mark.timed
@pytest.mark.parametrize("begin", [begin_async, begin_ours])
def test_training_waits_for_the_snapshot_alone(begin, tmp_path):
    # Given a table whose rows take a while to write
    num_keys, dim = 300_000, 32
    table = ge.get_embedding_variable("user", dim)
    table.insert(np.arange(num_keys), np.ones([num_keys, dim]))
    checkpoint = tf.train.Checkpoint(table=table, dense=tf.Variable(0.0))
    waited, took = [], []
    # When it is saved while rows change
    for n in range(3):
        start = time.perf_counter()
        end = begin(checkpoint, f"{tmp_path}/model")
        waited.append(time.perf_counter() - start)
        table.insert(np.arange(1000), np.full([1000, dim], n + 2.0))
        checkpoint.dense.assign(n + 1.0)
        path = end()
        took.append(time.perf_counter() - start)
    # Then the wait is a small part of the save, and what is saved is what was there before
    print(f"waited {min(waited) * 1e3:.2f} ms of {min(took) * 1e3:.0f} ms")
    assert min(waited) < min(took) / 4
    rows, dense = content(path)
    assert rows["user"][0][2] == np.full(dim, 3.0, np.float32).tobytes()
    assert dense["dense/.ATTRIBUTES/VARIABLE_VALUE"] == np.float32(2.0).tobytes()


@pytest.mark.parametrize("begin", BACKGROUND_SAVES)
def test_changes_are_saved_in_the_background(begin, tmp_path):
    model = Model()
    checkpoint = tf.train.Checkpoint(model=model)
    model.train(BATCHES[:3])
    begin(checkpoint, f"{tmp_path}/full")()
    model.train(BATCHES[3:])

    if begin is begin_ours:
        save = ge.checkpoint.BackgroundSave(checkpoint, f"{tmp_path}/changes", changes=True)
        path = save.result()
    else:
        path = ge.checkpoint.save_changes(checkpoint, f"{tmp_path}/changes", options=IN_BACKGROUND)
        checkpoint.sync()

    assert [f["changes_only"] for t in files.tables(path) for f in t["files"]] == [False, True] * 2
    expected = content(tf.train.Checkpoint(model=model).write(f"{tmp_path}/expected"))
    assert content(path)[0] == expected[0]


def test_an_object_that_can_not_be_copied_is_refused(tmp_path):
    class Counter(tf.train.experimental.PythonState):
        def serialize(self):
            return "1"

        def deserialize(self, string_value):
            pass

    checkpoint = tf.train.Checkpoint(model=Model(), counter=Counter())

    with pytest.raises(ValueError, match="expected objects that can be copied.*Counter"):
        ge.checkpoint.BackgroundSave(checkpoint, f"{tmp_path}/model")


def test_an_error_of_a_background_save_is_raised_by_its_result(tmp_path):
    (tmp_path / "a_file").write_text("")

    save = ge.checkpoint.BackgroundSave(tf.train.Checkpoint(Model()), f"{tmp_path}/a_file/model")

    with pytest.raises((tf.errors.OpError, ValueError)):
        save.result()


@pytest.mark.skipif(KERAS_3, reason="Keras 3 copies its variables once")
def test_a_table_that_came_later_is_not_saved_of_another_moment(tmp_path):
    model = Model()
    checkpoint = tf.train.Checkpoint(model=model)
    checkpoint.write(f"{tmp_path}/first", IN_BACKGROUND)
    model.late = ge.get_embedding_variable("late", cases.DIM)

    checkpoint.write(f"{tmp_path}/second", IN_BACKGROUND)

    with pytest.raises(ValueError, match="late.*expected to be there when this tf.train.Check"):
        checkpoint.write(f"{tmp_path}/third", IN_BACKGROUND)


@pytest.mark.skipif(KERAS_3, reason="Keras 3 saves no weights in TensorFlow's format")
def test_keras_saves_weights_in_the_background(tmp_path):
    class Keras(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.table = ge.get_embedding_variable("keras", cases.DIM)
            self.dense = tf.keras.layers.Dense(1)

        def call(self, keys):
            (rows,) = ge.group_embedding_lookup([self.table], [keys])
            return self.dense(tf.reduce_sum(rows, 1))

    first, second = Keras(), Keras()
    keys = np.unique(BATCHES)
    first.table.insert(keys, np.random.default_rng(0).normal(size=[len(keys), cases.DIM]))
    expected = first(BATCHES[0])

    first.save_weights(f"{tmp_path}/weights", save_format="tf", options=IN_BACKGROUND)
    first.table.erase(keys)
    first._checkpoint.sync()
    second(BATCHES[0])
    second.load_weights(f"{tmp_path}/weights").assert_existing_objects_matched()

    np.testing.assert_array_equal(second(BATCHES[0]), expected)
