"""Ranks that train a graph of TensorFlow 1 publish one version together, by a hook."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows
from group_embedding.serving.versions.deltas import Reader

v1 = tf.compat.v1
KEYED = {"graph/users": "distributed", "graph/ads": "localized:1"}
BY_ROW = {"graph/rows": "distributed", "graph/copies": "replicated"}
NUM_ROWS, DIM, STEPS = 31, 4, 7


def build(trains):
    """(Keyed tables, tables by row number, weights, ids, scores) in the default graph."""
    keyed = {
        name: ge.get_embedding_variable(name, DIM, placement=word if trains else None)
        for name, word in KEYED.items()
    }
    start = np.random.default_rng(3).normal(size=(NUM_ROWS, DIM)).astype(np.float32)
    by_row = {
        name: make_table(
            (NUM_ROWS, DIM),
            v1.constant_initializer(start),
            lambda shape, initializer, name=name: v1.get_variable(
                name, shape, tf.float32, initializer
            ),
            placement=word if trains else None,
        )
        for name, word in BY_ROW.items()
    }
    weights = v1.get_variable("weights", [4 * DIM, 1], initializer=v1.ones_initializer())
    ids = v1.placeholder(tf.int64, [None], "ids")
    tables = [*keyed.values(), *by_row.values()]
    vectors = ge.group_embedding_lookup(tables, [ids] * len(tables))
    return keyed, by_row, weights, ids, tf.concat(vectors, 1) @ weights


def export(checkpoint, folder):
    with tf.Graph().as_default(), v1.Session() as session:
        _, _, _, ids, score = build(trains=False)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().restore(session, checkpoint)
        v1.saved_model.simple_save(session, f"{folder}/1", {"ids": ids}, {"score": score})
    return f"{folder}/1"


def publish_by_hook(target, options):
    """{step: (keyed tables, tables by row number, weights)} of what all ranks trained."""
    ge.enable_distributed_strategy()
    rank = ge.exchange.current().rank
    expected = {}
    with tf.Graph().as_default():
        keyed, by_row, weights, ids, score = build(trains=True)
        step = v1.train.get_or_create_global_step()
        optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1)))
        train = optimizer.minimize(tf.reduce_sum((score - 2) ** 2), step)
        exported = {table.rows.name: table.export(gather=True) for table in keyed.values()}
        whole = {name: gather_rows(variable) for name, variable in by_row.items()}
        hook = ge.serving.PublisherHook(target, export, **options)
        with v1.train.MonitoredTrainingSession(hooks=[hook], save_summaries_steps=None) as session:
            for number in range(STEPS):
                given = [number, 10 + rank, (number * 7 + rank) % NUM_ROWS]
                session.run(train, {ids: given})
                found, rows, dense = session.run([exported, whole, weights])
                tables = {
                    name: {k: v.tobytes() for k, v in zip(one.keys.tolist(), one.values)}
                    for name, one in found.items()
                }
                expected[number + 1] = tables, rows, dense
    return expected


def check(target, expected):
    reader = Reader(ge.serving.open_target(target))
    for version in reader.versions():
        content = reader.read(version)
        tables, rows, dense = expected[content.record.step]
        assert content.tables == tables
        np.testing.assert_array_equal(content.variables["weights"], dense)
        for name, values in rows.items():
            np.testing.assert_array_equal(content.variables[name], values)
    return reader


def test_hooks_of_ranks_publish(two_ranks, tmp_path):
    # Given two ranks, which train keyed tables and tables by row number in a graph
    target = str(tmp_path / "target")
    expected, of_rank_1 = two_ranks.run(
        publish_by_hook, target, {"every_steps": 2, "base_every": 2}, timeout=300
    )
    assert list(expected) == list(of_rank_1)

    # When versions are read, then each is what both trained at its step, to the bit
    reader = check(target, expected)
    assert [reader.record(v).step for v in reader.versions()] == [2, 4, 6, 7]
    assert [reader.record(v).base for v in reader.versions()] == [1, 1, 1, 4]

    # And what is served is what the trainers had: by deltas, and by the base of the last version
    ids = np.arange(12)
    with ge.serving.InferenceSession(f"{target}/1") as session:
        for version in (2, 3, 4):
            session.apply(f"{target}/versions/{version:020d}")
        served = session.predict({"ids": ids})["score"]
    with ge.serving.InferenceSession(f"{target}/4") as session:
        np.testing.assert_array_equal(session.predict({"ids": ids})["score"], served)


@pytest.mark.slow
def test_hooks_of_ranks_publish_in_the_background(two_ranks, tmp_path):
    target = str(tmp_path / "target")
    expected, _ = two_ranks.run(publish_by_hook, target, {"every_seconds": 0}, timeout=300)
    reader = check(target, expected)
    assert reader.record(reader.versions()[-1]).step == STEPS


def fail_to_export(target):
    ge.enable_distributed_strategy()
    with tf.Graph().as_default():
        build(trains=True)
        v1.train.get_or_create_global_step()
        hook = ge.serving.PublisherHook(target, lambda *_: "/nowhere", every_steps=1)
        try:
            with v1.train.MonitoredTrainingSession(hooks=[hook], save_summaries_steps=None):
                pass  # the end publishes
        except (ValueError, RuntimeError) as error:
            return str(error)


@pytest.mark.slow
def test_an_export_that_fails_is_told_on_all_ranks(two_ranks, tmp_path):
    told = two_ranks.run(fail_to_export, str(tmp_path / "target"), timeout=300)
    assert all("expected `export` to return the folder of a SavedModel" in text for text in told)


def train_an_estimator(folder, target):
    strategy = ge.CollectiveStrategy()
    rank = ge.exchange.current().rank

    def model_fn(features, labels, mode):
        del labels
        users = ge.get_embedding_variable("estimator_users", DIM)
        (vectors,) = ge.group_embedding_lookup([users], [features["user"]])
        score = v1.layers.dense(vectors, 1)
        if mode == tf.estimator.ModeKeys.PREDICT:
            outputs = {"serving_default": tf.estimator.export.PredictOutput({"score": score})}
            return tf.estimator.EstimatorSpec(mode, {"score": score}, export_outputs=outputs)
        optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
        loss = tf.reduce_mean((score - 1) ** 2)
        train = optimizer.minimize(loss, v1.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def batches():
        given = {"user": np.arange(10, dtype=np.int64)[None] + 10 * rank}
        return tf.data.Dataset.from_tensor_slices(given).map(lambda b: (b, 0)).repeat()

    def receiver():
        inputs = {"user": v1.placeholder(tf.int64, [None], "user")}
        return tf.estimator.export.ServingInputReceiver(inputs, inputs)

    def export_whole(checkpoint, where):
        whole = tf.estimator.Estimator(model_fn, folder)
        return whole.export_saved_model(where, receiver, checkpoint_path=checkpoint)

    job = strategy.estimator(model_fn, folder)
    hook = ge.serving.PublisherHook(target, export_whole, every_steps=2)
    job.train(batches, hooks=[hook], steps=5)
    checkpoint = tf.train.latest_checkpoint(folder)
    if rank == 0:
        with ge.exchange.unsharded():
            return export_whole(checkpoint, f"{folder}/last").decode()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
def test_an_estimator_of_ranks_publishes(two_ranks, tmp_path):
    # Given an Estimator that two ranks train, and that publishes by a hook
    folder, target = str(tmp_path / "model"), str(tmp_path / "target")
    exported, _ = two_ranks.run(train_an_estimator, folder, target, timeout=300)

    # When the last version is served, then it answers as the Estimator's last checkpoint does
    reader = Reader(ge.serving.open_target(target))
    assert [reader.record(v).step for v in reader.versions()] == [2, 4, 5]
    users = {"user": np.arange(25)}
    with ge.serving.InferenceSession(exported) as session:
        expected = session.predict(users)["score"]
    with ge.serving.InferenceSession(f"{target}/1") as session:
        for version in (2, 3):
            session.apply(f"{target}/versions/{version:020d}")
        np.testing.assert_array_equal(session.predict(users)["score"], expected)
    assert len(np.unique(expected)) > 20  # keys of both ranks have rows
