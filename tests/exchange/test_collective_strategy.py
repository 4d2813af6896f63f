"""`CollectiveStrategy` on several ranks: scopes, evaluation, checkpoints and exports."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.testing import Ranks

v1 = tf.compat.v1
fc = tf.feature_column
NUM_STEPS, BATCH_SIZE = 6, 12


def batch_of(step):
    """Ids, keys and labels of this rank's part."""
    rng = np.random.default_rng(step)
    ids = rng.integers(0, 30, (BATCH_SIZE, 2))
    labels = rng.normal(size=(BATCH_SIZE, 1)).astype(np.float32)
    mine = slice(exchange.current().rank, None, exchange.current().num_ranks)
    return ids[mine], (ids * 10**12 - 10**13)[mine], labels[mine]


def model(strategy, ids, keys):
    with strategy.embedding_scope():
        columns = [
            fc.embedding_column(
                fc.categorical_column_with_identity("id", 30),
                4,
                initializer=v1.truncated_normal_initializer(seed=3),
            ),
            fc.embedding_column(
                ge.categorical_column_with_embedding("key", tf.int64),
                3,
                initializer=v1.random_uniform_initializer(seed=4),
            ),
        ]
    inputs = v1.feature_column.input_layer({"id": ids, "key": keys}, columns)
    start = v1.glorot_uniform_initializer(seed=5)
    kernel = v1.get_variable("kernel", [inputs.shape[1], 1], initializer=start)
    return inputs @ kernel


def train_in_session(folder):
    """As in DeepRec's guide: an unwrapped optimizer in the scope, a MonitoredTrainingSession."""
    strategy = ge.CollectiveStrategy()
    with strategy.scope(), tf.Graph().as_default():
        ids, keys = v1.placeholder(tf.int64, [None, 2]), v1.placeholder(tf.int64, [None, 2])
        labels = v1.placeholder(tf.float32, [None, 1])
        loss = tf.reduce_mean((model(strategy, ids, keys) - labels) ** 2)
        optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_or_create_global_step())
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=folder, save_checkpoint_steps=NUM_STEPS
        ) as session:
            for step in range(NUM_STEPS):
                session.run(train_op, dict(zip((ids, keys, labels), batch_of(step))))
    stock = type(v1.train.AdagradOptimizer(0.1))

    def build():
        ids = v1.placeholder(tf.int64, [None, 2], "ids")
        keys = v1.placeholder(tf.int64, [None, 2], "keys")
        return {"ids": ids, "keys": keys}, {"score": model(strategy, ids, keys)}

    latest = tf.train.latest_checkpoint(folder)
    exported = strategy.export_saved_model(f"{folder}/exported", build, latest)
    return exported, stock is v1.train.AdagradOptimizer, (strategy.rank, strategy.world_size)


def train_estimator(folder):
    strategy = ge.CollectiveStrategy()

    def model_fn(features, labels, mode):
        score = model(strategy, features["id"], features["key"])
        if mode == tf.estimator.ModeKeys.PREDICT:
            outputs = {"serving_default": tf.estimator.export.PredictOutput({"score": score})}
            return tf.estimator.EstimatorSpec(mode, {"score": score}, export_outputs=outputs)
        loss = tf.reduce_mean((score - labels) ** 2)
        if mode == tf.estimator.ModeKeys.EVAL:
            return tf.estimator.EstimatorSpec(mode, loss=loss)
        optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def dataset(batches):
        def input_fn():
            given = [({"id": ids, "key": keys}, labels) for ids, keys, labels in batches]
            signature = (
                {
                    "id": tf.TensorSpec([None, 2], tf.int64),
                    "key": tf.TensorSpec([None, 2], tf.int64),
                },
                tf.TensorSpec([None, 1]),
            )
            return tf.data.Dataset.from_generator(lambda: given, output_signature=signature)

        return input_fn

    with exchange.unsharded():
        whole = [batch_of(step) for step in range(NUM_STEPS)]
    config = tf.estimator.RunConfig(save_checkpoints_steps=4)
    job = strategy.estimator(model_fn, folder, config)
    metrics = job.train_and_evaluate(
        tf.estimator.TrainSpec(dataset([batch_of(s) for s in range(NUM_STEPS)]), NUM_STEPS),
        tf.estimator.EvalSpec(dataset(whole), steps=None),
    )

    def receiver():
        inputs = {name: v1.placeholder(tf.int64, [None, 2], name) for name in ("id", "key")}
        return tf.estimator.export.ServingInputReceiver(inputs, inputs)

    exported = job.export_saved_model(f"{folder}/exported", receiver).decode()
    return exported, {name: float(value) for name, value in metrics.items()}


def train_on_rank(folder):
    in_session = train_in_session(f"{folder}/session")
    if not hasattr(tf, "estimator"):
        return in_session, None
    return in_session, train_estimator(f"{folder}/estimator")


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    pytest.importorskip("horovod.tensorflow", reason="Horovod is not installed")
    with Ranks(1) as one:
        return one.run(train_on_rank, str(tmp_path_factory.mktemp("one")), timeout=120)[0]


@pytest.fixture(scope="module")
def ranks(several_ranks, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("ranks"))
    return several_ranks.run(train_on_rank, folder, timeout=120)


def serve(exported, names):
    """What a SavedModel says of all ids and some keys that nobody trained."""
    with exchange.unsharded():
        rows = np.arange(30).reshape(15, 2)
        given = dict(zip(names, (rows, rows * 10**12 - 10**13)))
    signature = tf.saved_model.load(exported).signatures["serving_default"]
    return signature(**{k: tf.constant(v, tf.int64) for k, v in given.items()})["score"].numpy()


def test_ranks_know_their_numbers_and_optimizers_are_stock_again(ranks):
    for rank, ((_, is_stock, numbers), _) in enumerate(ranks):
        assert is_stock
        assert numbers == (rank, len(ranks))


def test_a_session_trains_and_exports_the_model_of_one_process(ranks, one_process):
    assert len({exported for (exported, *_), _ in ranks}) == 1

    actual = serve(ranks[0][0][0], ("ids", "keys"))

    expected = serve(one_process[0][0], ("ids", "keys"))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
def test_an_estimator_trains_evaluates_and_exports_the_model_of_one_process(ranks, one_process):
    expected_export, expected_metrics = one_process[1]

    for _, (_, metrics) in ranks:
        assert metrics == pytest.approx(expected_metrics, rel=1e-4)
    actual = serve(ranks[0][1][0], ("id", "key"))

    expected = serve(expected_export, ("id", "key"))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
