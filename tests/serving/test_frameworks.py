"""Keras models, sessions and Estimators publish what they train."""

import numpy as np
import pytest
import tensorflow as tf
from serving.serving_models import reader_of

import group_embedding as ge
from group_embedding.keras_compat import keras
from group_embedding.serving import InferenceSession

v1 = tf.compat.v1
NUM_SAMPLES, BATCH = 64, 16


def keras_model():
    table = ge.TableConfig("fitted", num_rows=None, dim=4, combiner="sum")
    ids = keras.Input([3], dtype="int64", name="ids")
    vectors = ge.layers.GroupEmbedding({"ids": ge.FeatureConfig("ids", table)})({"ids": ids})["ids"]
    hidden = keras.layers.Dense(8, activation="relu", name="hidden")(vectors)
    return keras.Model(ids, keras.layers.Dense(1, name="score")(hidden))


@pytest.fixture
def samples():
    random = np.random.default_rng(0)
    ids = random.integers(0, 50, [NUM_SAMPLES, 3])
    return ids, (ids.sum(1, keepdims=True) % 2).astype(np.float32)


@pytest.mark.parametrize("every_seconds", [None, 0])
def test_fit_publishes(every_seconds, samples, tmp_path):
    # Given a model with keyed rows, trained by fit
    model = keras_model()
    optimizer = ge.optimizers.wrap(keras.optimizers.Adagrad(0.5))
    model.compile(optimizer, "mse")
    table = next(v for v in _tables(model))

    # When a callback publishes
    with ge.serving.Publisher(model, tmp_path, every_seconds=every_seconds) as publisher:
        callback = ge.serving.PublisherCallback(publisher)
        model.fit(*samples, batch_size=BATCH, epochs=3, callbacks=[callback], verbose=0)
        newest = publisher.version

    # Then versions were published on the way, and the last one is the model
    reader = reader_of(tmp_path)
    assert newest == max(reader.versions()) and len(reader.versions()) >= 2
    content = reader.read(newest)
    exported = table.export()
    rows = {k: v.tobytes() for k, v in zip(exported.keys.numpy().tolist(), exported.values.numpy())}
    assert content.tables == {table.rows.name: rows}
    published = [v.tobytes() for v in content.variables.values()]
    for weight in (w for w in model.trainable_weights if "dense" not in w.name and w.shape[0]):
        assert np.asarray(weight).tobytes() in published
    assert content.record.step == int(optimizer.iterations)


def _tables(model):
    for layer in model.layers:
        for weight in getattr(layer, "weights", []):
            if hasattr(weight, "export"):
                yield weight


@pytest.mark.parametrize("parts", [None, 1])
def test_sessions_publish(parts, tmp_path):
    # Given a graph with a keyed table, and an export of its checkpoints
    target = tmp_path / "target"

    def build():
        users = ge.get_embedding_variable("session_users", embedding_dim=4)
        with v1.variable_scope("dense", partitioner=parts and v1.fixed_size_partitioner(parts)):
            weights = v1.get_variable("weights", [4, 1], initializer=v1.ones_initializer())
        weights = tf.convert_to_tensor(weights)
        ids = v1.placeholder(tf.int64, [None], "ids")
        (vectors,) = ge.group_embedding_lookup([users], [ids])
        return users, weights, ids, vectors @ weights

    def export(checkpoint, folder):
        with tf.Graph().as_default(), v1.Session() as session:
            _, _, ids, score = build()
            session.run(v1.global_variables_initializer())
            v1.train.Saver().restore(session, checkpoint)
            v1.saved_model.simple_save(session, f"{folder}/1", {"ids": ids}, {"score": score})
        return f"{folder}/1"

    # When a session trains with a hook
    expected = {}
    with tf.Graph().as_default():
        users, weights, ids, score = build()
        step = v1.train.get_or_create_global_step()
        optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
        train = optimizer.minimize(tf.reduce_sum((score - 2) ** 2), step)
        exported = users.export()
        hook = ge.serving.PublisherHook(target, export, every_steps=2)
        with v1.train.MonitoredTrainingSession(hooks=[hook], save_summaries_steps=None) as session:
            for number in range(7):
                session.run(train, {ids: [number, number + 1, 100]})
                keys, values = session.run([exported.keys, exported.values])
                rows = {k: v.tobytes() for k, v in zip(keys.tolist(), values)}
                expected[number + 1] = rows, session.run(weights)

    # Then versions are the graph at their steps; the last one is that of the end
    reader = reader_of(target)
    assert [reader.record(v).step for v in reader.versions()] == [2, 4, 6, 7]
    for version in reader.versions():
        content = reader.read(version)
        rows, weights = expected[content.record.step]
        assert content.tables == {"session_users": rows}
        np.testing.assert_array_equal(content.variables["dense/weights"], weights)

    # And a server answers from each as the graph
    keys = list(expected[7][0])
    with InferenceSession(target / "1") as session:
        for version in reader.versions()[1:]:
            session.apply(target / "versions" / f"{version:020}")
        found = session.predict({"ids": np.array(keys)})["score"]
    rows = np.array([np.frombuffer(expected[7][0][key], np.float32) for key in keys])
    np.testing.assert_allclose(found, rows @ expected[7][1], rtol=1e-5, atol=1e-6)


def test_sessions_refuse_variables_in_parts(tmp_path):
    # Given a variable that a partitioner makes two of
    def build():
        with v1.variable_scope("dense", partitioner=v1.fixed_size_partitioner(2)):
            weights = v1.get_variable("weights", [4, 1])
        x = v1.placeholder(tf.float32, [None, 4], "x")
        return x, x @ tf.convert_to_tensor(weights)

    def export(checkpoint, folder):
        with tf.Graph().as_default(), v1.Session() as session:
            x, score = build()
            v1.train.Saver().restore(session, checkpoint)
            v1.saved_model.simple_save(session, f"{folder}/1", {"x": x}, {"score": score})
        return f"{folder}/1"

    # When its graph is to be published, Then the error names it
    with tf.Graph().as_default():
        build()
        step = v1.train.get_or_create_global_step().assign_add(1)
        hook = ge.serving.PublisherHook(tmp_path, export, every_steps=1)
        refused = pytest.raises(ValueError, match="'dense/weights': expected one that is published")
        train = v1.train.MonitoredTrainingSession(hooks=[hook], save_summaries_steps=None)
        with refused, train as session:
            session.run(step)


def test_hooks_refuse_wrong_arguments(tmp_path):
    for arguments in ({}, {"every_steps": 1, "every_seconds": 1}):
        with pytest.raises(ValueError, match="expected every_steps or every_seconds"):
            ge.serving.PublisherHook(tmp_path, lambda *_: "", **arguments)
    with pytest.raises(ValueError, match="expected every_steps to be at least 1, got 0"):
        ge.serving.PublisherHook(tmp_path, lambda *_: "", every_steps=0)
    with pytest.raises(ValueError, match="expected no build, as `export` makes the model"):
        ge.serving.PublisherHook(tmp_path, lambda *_: "", every_steps=1, build=tf.Module)
