"""InferenceSession opens what each way of training exports: signatures, storages, ranks."""

import numpy as np
import pytest
import tensorflow as tf
from support.cases import shop_models

import group_embedding as ge
from group_embedding.exchange import unsharded
from group_embedding.keras_compat import keras
from group_embedding.serving import InferenceSession

v1 = tf.compat.v1
HAS_ESTIMATORS = hasattr(tf, "estimator")
HOST = ge.StorageType.DRAM
DISK = ge.StorageType.DRAM_SSDHASH


class TwoTasks(tf.Module):
    """Two keyed tables; two heads, and a signature of one of them alone."""

    def __init__(self, prefix, storage=None):
        super().__init__()
        draw = np.random.default_rng(3)
        option = {} if storage is None else {"storage_option": storage}
        self.user = shop_models.table(f"{prefix}_user", 8, **option)
        self.item = shop_models.table(f"{prefix}_item", 4, **option)
        for table, dim in ((self.user, 8), (self.item, 4)):
            table.insert(np.arange(2000), draw.normal(size=[2000, dim]).astype(np.float32))
        self.heads = tf.Variable(draw.normal(size=[12, 2]).astype(np.float32))

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64, name=n) for n in ("user", "item")]
    )
    def both(self, user, item):
        rows = tf.concat(ge.group_embedding_lookup([self.user, self.item], [user, item]), 1)
        click, buy = tf.unstack(rows @ self.heads, axis=1)
        return {"click": click, "buy": buy}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="user")])
    def of_user(self, user):
        return {"vector": ge.group_embedding_lookup([self.user], [user])[0]}

    def export(self, folder):
        signatures = {"serving_default": self.both, "user": self.of_user}
        tf.saved_model.save(self, str(folder), signatures=signatures)


def assert_answers(model, folder, tolerance=0.0):
    """tolerance: relative, of a model that was trained on another device."""
    users, items = np.array([5, 1999, 7777]), np.array([3, -1, 1500])
    with InferenceSession(folder) as session:
        both = session.predict({"user": users, "item": items})
        alone = session.predict({"user": users}, signature="user")
        assert set(session.signatures()) == {"serving_default", "user"}
    for name, value in model.both(tf.constant(users), tf.constant(items)).items():
        np.testing.assert_allclose(both[name], value, rtol=tolerance)
    np.testing.assert_array_equal(alone["vector"], model.of_user(tf.constant(users))["vector"])


def test_several_signatures_and_outputs(tmp_path):
    model = TwoTasks("two")
    model.export(tmp_path / "1")
    assert_answers(model, tmp_path / "1")


def test_tables_with_a_disk_tier(tmp_path):
    # Given tables of which memory holds a part of the rows
    storage = ge.StorageOption(
        storage_type=DISK, storage_path=str(tmp_path / "rows"), storage_size=[1 << 16]
    )
    model = TwoTasks("disk", storage)
    assert (model.user.lookup_tier(tf.range(2000, dtype=tf.int64)).numpy() > 0).any()
    # When it is exported and served
    model.export(tmp_path / "1")
    # Then rows of both tiers answer
    assert_answers(model, tmp_path / "1")


def test_ids_that_the_signature_routes(tmp_path):
    # Given a table with a disk tier, whose rows the signature brings to memory
    storage = ge.StorageOption(
        storage_type=DISK, storage_path=str(tmp_path / "rows"), storage_size=[1 << 16]
    )
    option = ge.EmbeddingVariableOption(storage_option=storage)
    model = tf.Module()
    model.table = ge.get_embedding_variable("routed", 4, ev_option=option)
    values = np.random.default_rng(2).normal(size=[3000, 4]).astype(np.float32)
    model.table.insert(np.arange(3000), values)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(ids):
        routed = ge.route_ids([model.table], [ids])
        return {"rows": ge.group_embedding_lookup([model.table], routed)[0]}

    # When it is exported and served
    tf.saved_model.save(model, str(tmp_path / "1"), signatures=serve)
    # Then rows of both tiers answer
    ids = np.arange(0, 3000, 7)
    with InferenceSession(tmp_path / "1") as session:
        np.testing.assert_array_equal(session.predict({"ids": ids})["rows"], values[ids])


@pytest.mark.gpu
@pytest.mark.parametrize("storage_type", ["HBM", "HBM_DRAM"])
def test_tables_in_gpu_memory(storage_type, tmp_path):
    kind = getattr(ge.StorageType, storage_type)
    model = TwoTasks("gpu", ge.StorageOption(storage_type=kind))
    model.export(tmp_path / "1")
    assert_answers(model, tmp_path / "1", tolerance=1e-5)


def test_a_keras_model_with_two_heads(tmp_path):
    # Given a trained model of the Keras that is installed
    table = ge.TableConfig("served_clicks", num_rows=None, dim=4, combiner="sum")
    ids = keras.Input([3], dtype="int64", name="ids")
    rows = ge.layers.GroupEmbedding({"ids": ge.FeatureConfig("ids", table)})({"ids": ids})["ids"]
    heads = {name: keras.layers.Dense(1, name=name)(rows) for name in ("click", "buy")}
    model = keras.Model(ids, heads)
    model.compile(ge.optimizers.wrap(keras.optimizers.Adagrad(0.1)), dict.fromkeys(heads, "mse"))
    batch = np.random.default_rng(0).integers(0, 40, [32, 3])
    model.fit(batch, {name: np.ones([32, 1], np.float32) for name in heads}, verbose=0)
    # When it is exported
    model.export(str(tmp_path / "1"))
    # Then each head answers
    with InferenceSession(tmp_path / "1") as session:
        (name,) = session.signatures()["serving_default"]["inputs"]
        found = session.predict({name: batch})
    for head, value in model(batch).items():
        np.testing.assert_allclose(found[head], np.asarray(value), rtol=1e-5, atol=1e-6)


class Ranker(tf.Module):
    """A model of the Keras that is installed, in a module: keyed rows, and two kinds of layers."""

    def __init__(self):
        super().__init__()
        table = ge.TableConfig("module_ids", num_rows=None, dim=4, combiner="sum")
        layer = ge.layers.GroupEmbedding({"ids": ge.FeatureConfig("ids", table)})
        ids = keras.Input([3], dtype="int64", name="ids")
        hidden = keras.layers.Dense(5, name="hidden")(layer({"ids": ids})["ids"])
        hidden = keras.layers.BatchNormalization()(hidden)
        self.network = keras.Model(ids, keras.layers.Dense(1, name="score")(hidden))
        (self.rows,) = layer.tables.values()
        self.train(1)

    def train(self, seed):
        draw = np.random.default_rng(seed)
        self.rows.insert(np.arange(40), draw.normal(size=[40, 4]).astype(np.float32))
        for layer in self.network.layers[2:]:
            layer.set_weights([draw.uniform(0.5, 1, size=w.shape) for w in layer.get_weights()])

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64, name="ids")])
    def serve(self, ids):
        return {"score": self.network(ids, training=False)}


def test_a_keras_model_in_a_module(tmp_path):
    # Given a Keras model in a tf.Module, of which the graph has variables that nothing reads beside
    # those that functions read, under Keras 3
    model, ids = Ranker(), np.random.default_rng(0).integers(0, 60, [32, 3])
    # When tf.saved_model.save exports it, and a delta of another step of training comes
    found, expected = [], []
    with ge.serving.Publisher(model, tmp_path, signatures=model.serve) as publisher:
        publisher.publish()
        expected.append(model.serve(tf.constant(ids))["score"])
        model.train(2)
        newest = publisher.publish()
        expected.append(model.serve(tf.constant(ids))["score"])
    with InferenceSession(tmp_path / "1") as session:
        found.append(session.predict({"ids": ids})["score"])
        session.apply(tmp_path / "versions" / f"{newest:020}")
        found.append(session.predict({"ids": ids})["score"])
    # Then both versions answer as the model
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(found[0] - found[1]).max() > 0.1


@pytest.mark.skipif(not HAS_ESTIMATORS, reason="this TensorFlow has no Estimators")
def test_an_estimator(tmp_path):
    # Given a trained Estimator with a keyed table
    def model_fn(features, labels, mode):
        users = ge.get_embedding_variable("estimator_user", embedding_dim=4)
        (rows,) = ge.group_embedding_lookup([users], [features["user"]])
        score = tf.reduce_sum(rows, axis=1) + v1.get_variable(
            "bias", [], initializer=v1.ones_initializer()
        )
        if mode == tf.estimator.ModeKeys.PREDICT:
            exported = tf.estimator.export.PredictOutput({"score": score})
            return tf.estimator.EstimatorSpec(
                mode, {"score": score}, export_outputs={"serving_default": exported}
            )
        loss = tf.reduce_mean((score - labels) ** 2)
        optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
        train = optimizer.minimize(loss, v1.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    users = np.arange(30)

    def batches():
        data = ({"user": users}, np.ones(30, np.float32))
        return tf.data.Dataset.from_tensors(data).repeat(5)

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path / "run"))
    estimator.train(batches)

    def receiver():
        given = {"user": v1.placeholder(tf.int64, [None], "user")}
        return tf.estimator.export.ServingInputReceiver(given, given)

    expected = [p["score"] for p in estimator.predict(lambda: batches().take(1))]
    # When it is exported and served
    path = estimator.export_saved_model(str(tmp_path / "export"), receiver)
    with InferenceSession(path) as session:
        found = session.predict({"user": users})["score"]
    # Then it answers as the Estimator
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def train_and_export(folder):
    """Two ranks train keys; rank 0 exports all of them. The rows of the keys, on rank 0."""
    ge.enable_distributed_strategy()
    rank = ge.exchange.current().rank
    model = TwoTasks("ranks")
    checkpoint = tf.train.Checkpoint(model=model)
    checkpoint.write(f"{folder}/checkpoint" if rank == 0 else f"{folder}/of_rank_1")
    if rank == 0:
        with unsharded():
            whole = TwoTasks("ranks")
            tf.train.Checkpoint(model=whole).read(f"{folder}/checkpoint")
            whole.export(f"{folder}/1")
        keys = tf.constant([5, 1999, 7777], tf.int64)
        return whole.of_user(keys)["vector"].numpy()


def test_an_export_of_two_ranks(two_ranks, tmp_path):
    expected, _ = two_ranks.run(train_and_export, str(tmp_path))
    with InferenceSession(tmp_path / "1") as session:
        assert [table["rows"] for table in session.info()["tables"]] == [2000, 2000]
        found = session.predict({"user": np.array([5, 1999, 7777])}, signature="user")
    np.testing.assert_array_equal(found["vector"], expected)
