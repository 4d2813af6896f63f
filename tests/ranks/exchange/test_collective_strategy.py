"""`CollectiveStrategy` on several ranks: scopes, evaluation, checkpoints and exports."""

import os

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange

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


def model(strategy, ids, keys, storage):
    """storage: of the keys, a StorageOption."""
    option = ge.EmbeddingVariableOption(storage_option=storage)
    with strategy.embedding_scope():
        columns = [
            fc.embedding_column(
                fc.categorical_column_with_identity("id", 30),
                4,
                initializer=v1.truncated_normal_initializer(seed=3),
            ),
            *(
                fc.embedding_column(
                    ge.categorical_column_with_embedding(name, tf.int64, ev_option=option),
                    dim,
                    initializer=v1.random_uniform_initializer(seed=dim + 1),
                )
                for name, dim in (("key", 3), ("double", 5), ("half", 2))
            ),
        ]
    features = {"id": ids, "key": keys, "double": 2 * keys, "half": keys // 2}
    inputs = v1.feature_column.input_layer(features, columns)
    start = v1.glorot_uniform_initializer(seed=5)
    kernel = v1.get_variable("kernel", [inputs.shape[1], 1], initializer=start)
    return inputs @ kernel


def device_of(storage):
    return None if "HBM" in str(storage.storage_type) else "/CPU:0"


def train_in_session(folder, storage):
    """Trains as in DeepRec's guide: an unwrapped optimizer in the scope, a
    MonitoredTrainingSession."""
    strategy = ge.CollectiveStrategy()
    with strategy.scope(), tf.Graph().as_default() as graph:
        ids, keys = v1.placeholder(tf.int64, [None, 2]), v1.placeholder(tf.int64, [None, 2])
        labels = v1.placeholder(tf.float32, [None, 1])
        loss = tf.reduce_mean((model(strategy, ids, keys, storage) - labels) ** 2)
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
        return {"ids": ids, "keys": keys}, {"score": model(strategy, ids, keys, storage)}

    latest = tf.train.latest_checkpoint(folder)
    exported = strategy.export_saved_model(f"{folder}/exported", latest, build)
    return {
        "exported": {"folder": os.path.abspath(exported), "device": device_of(storage)},
        "optimizers are stock": stock is v1.train.AdagradOptimizer,
        "numbers": (strategy.rank, strategy.world_size),
        "ops of a step": {operation.type for operation in graph.get_operations()},
    }


def train_estimator(folder, storage):
    strategy = ge.CollectiveStrategy()

    def model_fn(features, labels, mode):
        score = model(strategy, features["id"], features["key"], storage)
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
    stock = tf.estimator.Estimator(model_fn, folder)
    by_stock = stock.export_saved_model(f"{folder}/by_stock", receiver).decode()
    metrics = {name: float(value) for name, value in metrics.items()}
    default = strategy.estimator(model_fn, f"{folder}/default", tf.estimator.RunConfig()).config
    with pytest.raises(ValueError, match="save_checkpoints_secs=60"):
        by_time = tf.estimator.RunConfig(save_checkpoints_secs=60)
        strategy.estimator(model_fn, f"{folder}/by_time", by_time)
    saves = (default.save_checkpoints_steps, default.save_checkpoints_secs)
    return {
        "exported": {"folder": os.path.abspath(exported), "device": device_of(storage)},
        "exported by stock": {"folder": os.path.abspath(by_stock), "device": device_of(storage)},
        "metrics": metrics,
        "saves by default": saves,
    }


def train_on_rank(folder, storage=None):
    """{way: what it gave}."""
    storage = storage or ge.StorageOption()
    ways = {"session": train_in_session(f"{folder}/session", storage)}
    if hasattr(tf, "estimator"):
        relative = os.path.relpath(f"{folder}/estimator")  # as a script's flags may name it
        ways["estimator"] = train_estimator(relative, storage)
    return ways


@pytest.fixture(scope="module")
def one_process(start_ranks, tmp_path_factory):
    with start_ranks(1) as one:
        return one.run(train_on_rank, str(tmp_path_factory.mktemp("one")), timeout=240)[0]


@pytest.fixture(scope="module")
def ranks(several_ranks, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("ranks"))
    return several_ranks.run(train_on_rank, folder, timeout=240)


def serve_as_object(exported, given):
    """Outputs of a SavedModel that is loaded on its tables' device. On a GPU, TensorFlow would
    otherwise place the placeholders of tables in host memory on the GPU."""
    with tf.device(exported["device"]):
        signature = tf.saved_model.load(exported["folder"]).signatures["serving_default"]
    return signature(**{k: tf.constant(v, tf.int64) for k, v in given.items()})["score"].numpy()


def serve_in_session(exported, given):
    """Outputs of the SavedModel in a graph of TensorFlow 1."""
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.loader.load(session, ["serve"], exported["folder"])
        signature = meta_graph.signature_def["serving_default"]
        feed = {signature.inputs[name].name: values for name, values in given.items()}
        return session.run(signature.outputs["score"].name, feed)


def check_exports(ranks, one_process, way, export="exported"):
    """Checks that the ranks have written one SavedModel with the same outputs as that of one
    process, for all ids and for some keys that were never trained."""
    exported = ranks[0][way][export]
    assert all(of_rank[way][export] == exported for of_rank in ranks)
    assert len(os.listdir(os.path.dirname(exported["folder"]))) == 1 or way == "session"
    names = {"session": ("ids", "keys"), "estimator": ("id", "key")}[way]
    with exchange.unsharded():
        rows = np.arange(30).reshape(15, 2)
        given = dict(zip(names, (rows, rows * 10**12 - 10**13)))
    expected = serve_as_object(one_process[way]["exported"], given)
    for serve in (serve_as_object, serve_in_session):
        np.testing.assert_allclose(serve(exported, given), expected, rtol=1e-4, atol=1e-5)


def test_ranks_know_their_numbers_and_optimizers_are_stock_again(ranks):
    for rank, of_rank in enumerate(ranks):
        assert of_rank["session"]["optimizers are stock"]
        assert of_rank["session"]["numbers"] == (rank, len(ranks))


def test_a_session_trains_and_exports_the_model_of_one_process(ranks, one_process):
    check_exports(ranks, one_process, "session")


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
def test_an_estimator_trains_evaluates_and_exports_the_model_of_one_process(ranks, one_process):
    expected = one_process["estimator"]["metrics"]

    for of_rank in ranks:
        assert of_rank["estimator"]["metrics"] == pytest.approx(expected, rel=1e-4)
        assert of_rank["estimator"]["saves by default"] == (1000, None)
    check_exports(ranks, one_process, "estimator")


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
def test_an_estimator_of_tensorflow_exports_the_rows_of_all_ranks(ranks, one_process):
    check_exports(ranks, one_process, "estimator", "exported by stock")
