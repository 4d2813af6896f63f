"""Keyed tables in checkpoints of Estimators and in Keras `save_weights`."""

import contextlib
import types

import numpy as np
import pytest
import tensorflow as tf
from checkpoint import checkpoint_cases as cases

import group_embedding as ge

v1 = tf.compat.v1
BATCHES = cases.batches()
KERAS_3 = getattr(tf.keras, "__version__", "2").startswith("3")


def model_fn(features, labels, mode):
    v1.train.get_or_create_global_step()
    table = ge.get_embedding_variable("user", cases.DIM)
    (rows,) = ge.group_embedding_lookup([table], [features["keys"]])
    loss = tf.reduce_sum(rows**2)
    optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
    train = optimizer.minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def input_fn(begin, end):
    keys = tf.data.Dataset.from_tensor_slices({"keys": BATCHES[begin:end]})
    return keys.map(lambda keys: (keys, tf.zeros([])))


def stock_estimator(config):
    return tf.estimator.Estimator(model_fn, config=config)


def collective_estimator(config):
    """An Estimator of a CollectiveStrategy of one rank, without making the tests' process a
    rank."""
    from group_embedding.compat.deeprec.estimator import make_estimator

    strategy = types.SimpleNamespace(rank=0, scope=contextlib.nullcontext)
    return make_estimator(strategy, model_fn, config.model_dir, config, None)


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
def test_an_estimator_goes_on_where_it_ended(tmp_path):
    def train(folder, *parts):
        config = tf.estimator.RunConfig(str(tmp_path / folder), 1, save_checkpoints_steps=2)
        for begin, end in parts:
            estimator = stock_estimator(config)
            estimator.train(lambda begin=begin, end=end: input_fn(begin, end))
        return estimator

    whole = train("whole", (0, 10))
    parts = train("parts", (0, 3), (3, 10))

    expected, found = (cases.content(e.latest_checkpoint()) for e in (whole, parts))
    assert found == expected
    np.testing.assert_array_equal(
        *(e.evaluate(lambda: input_fn(0, 3))["loss"] for e in (whole, parts))
    )


@pytest.fixture
def background_saves(monkeypatch):
    """The steps that a hook saved in the background."""
    steps = []

    def save(*args, **kwargs):
        steps.append(int(kwargs["global_step"]))
        return ge.checkpoint.BackgroundSave(*args, **kwargs)

    monkeypatch.setattr("group_embedding.checkpoint.hook.BackgroundSave", save)
    return steps


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
@pytest.mark.parametrize("give_hook", [True, False])
def test_an_estimator_trains_on_while_checkpoints_are_written(
    give_hook, background_saves, tmp_path
):
    # Given an Estimator that waits for its checkpoints
    waiting, training = (
        tf.estimator.RunConfig(str(tmp_path / name), 1, save_checkpoints_steps=4)
        for name in ("waiting", "training")
    )
    stock_estimator(waiting).train(lambda: input_fn(0, 10))
    assert not background_saves
    # When another is given our hook, or is that of a CollectiveStrategy in one process
    if give_hook:
        hook = ge.checkpoint.CheckpointSaverHook(training.model_dir, save_steps=4)
        stock_estimator(training).train(lambda: input_fn(0, 10), hooks=[hook])
    else:
        collective_estimator(training).train(lambda: input_fn(0, 10))
    # Then the hook saves in the place of the Estimator's own, and the checkpoints are the same
    assert background_saves == [0, 4, 8, 10]
    for step in background_saves:
        paths = (f"{config.model_dir}/model.ckpt-{step}" for config in (waiting, training))
        expected, found = map(cases.content, paths)
        assert found == expected


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
def test_a_listener_of_an_estimator_sees_whole_checkpoints(background_saves, tmp_path):
    class Listener(v1.train.CheckpointSaverListener):
        found = []

        def after_save(self, session, global_step_value):
            path = tf.train.latest_checkpoint(tmp_path)
            self.found.append((global_step_value, path and len(cases.content(path)[0]["user"])))

    config = tf.estimator.RunConfig(str(tmp_path), 1, save_checkpoints_steps=4)

    collective_estimator(config).train(lambda: input_fn(0, 10), saving_listeners=[Listener()])

    counts = [(n, len(np.unique(BATCHES[:n]))) for n in background_saves]
    assert Listener.found == counts


class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.table = ge.get_embedding_variable("keras", cases.DIM)
        self.dense = tf.keras.layers.Dense(1)

    def call(self, keys):
        (rows,) = ge.group_embedding_lookup([self.table], [keys])
        return self.dense(tf.reduce_sum(rows, 1))


@pytest.mark.skipif(KERAS_3, reason="Keras 3 saves no weights in TensorFlow's format")
def test_keras_save_weights_in_tensorflows_format(tmp_path):
    first, second = Model(), Model()
    keys = np.unique(BATCHES)
    first.table.insert(keys, np.random.default_rng(0).normal(size=[len(keys), cases.DIM]))
    expected = first(BATCHES[0])

    first.save_weights(f"{tmp_path}/weights", save_format="tf")
    second(BATCHES[0])
    second.load_weights(f"{tmp_path}/weights").assert_consumed()

    np.testing.assert_array_equal(second(BATCHES[0]), expected)


@pytest.mark.skipif(KERAS_3, reason="Keras 3 does not track it in layers that are not ours")
@pytest.mark.parametrize("name", ["model.weights.h5", "model.h5"])
def test_keras_does_not_save_a_model_without_its_rows(name, tmp_path):
    model = Model()
    model(BATCHES[0])

    with pytest.raises(TypeError, match="table 'keras.*save_format='tf'"):
        model.save_weights(f"{tmp_path}/{name}")
