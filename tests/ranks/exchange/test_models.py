"""Models of `ge.models` on two ranks, each with half of every batch: beside one process."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding import exchange
from group_embedding.distributed import enable_distributed_strategy

SAMPLES, BATCH, EPOCHS = 256, 32, 4
ITEMS, USERS = 40, 20
MODELS = {
    "dlrm": lambda features: ge.models.DLRM(features, dense=["age"], bottom=[8], top=[8]),
    # Not Dice, which normalises by the batch of a rank.
    "din": lambda features: ge.models.DIN(
        features,
        dense=["age"],
        history={"seen": "item"},
        max_length=4,
        attention=[8],
        hidden=[8],
        activation="relu",
    ),
    "mmoe": lambda features: ge.models.MMoE(
        features, tasks=TASKS, dense=["age"], num_experts=3, expert=[8], tower=[8]
    ),
}
TASKS = ["click", "buy"]


def make_features():
    start = tf.keras.initializers.RandomNormal(stddev=0.5, seed=1)
    items = ge.TableConfig("items", ITEMS, 4, initializer=start)
    users = ge.TableConfig("users", USERS, 4, initializer=start)
    names = {"item": items, "seen": items, "user": users}
    return [ge.FeatureConfig(name, table) for name, table in names.items()]


def make_samples():
    """Inputs, and labels that depend on the item."""
    rng = np.random.default_rng(3)
    inputs = {
        "item": rng.integers(0, ITEMS, SAMPLES),
        "seen": rng.integers(-1, ITEMS, (SAMPLES, 5)),
        "user": rng.integers(0, USERS, SAMPLES),
        "age": rng.normal(size=SAMPLES).astype("float32"),
    }
    return inputs, (inputs["item"] % 2).astype("float32")


def start_dense_weights(model):
    """A model that starts alike on all ranks: tables by the seeds of their initializers."""
    model.build()
    tables = {id(weight) for weight in model.embedding.trainable_weights}
    rng = np.random.default_rng(5)
    for weight in model.trainable_weights:
        if id(weight) not in tables:
            weight.assign(rng.normal(size=weight.shape).astype("float32") * 0.4)


def train(name):
    """(the loss of each epoch, logits of all samples) of this rank's share of the batches,
    and of all batches in one process."""
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    model = MODELS[name](make_features())
    start_dense_weights(model)
    inputs, labels = make_samples()
    dataset = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(BATCH)
    own = dataset.map(lambda *batch: tf.nest.map_structure(lambda x: x[rank::num_ranks], batch))
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    if name == "mmoe":
        own = own.map(lambda inputs, y: (inputs, {"click": y, "buy": 1 - y}))
        loss = dict.fromkeys(TASKS, loss)
    adagrad = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.3))
    model.compile(
        ge.DistributedOptimizer(adagrad) if num_ranks > 1 else adagrad,
        loss,
    )
    trained = model.fit(own, epochs=EPOCHS, shuffle=False, verbose=0)
    logits = model(inputs)
    return trained.history["loss"], (logits["click"] if name == "mmoe" else logits).numpy()[:, 0]


def train_on_rank(name):
    enable_distributed_strategy()
    return train(name)


def auc(labels, logits):
    metric = tf.keras.metrics.AUC(from_logits=True)
    metric.update_state(labels, logits)
    return float(metric.result())


@pytest.mark.parametrize("name", by_day(MODELS, (), nightly=set(MODELS) - {"din"}))
def test_two_ranks_train_the_model_of_one_process(two_ranks, name):
    # given a model that one process trained, which is better than a guess
    losses, logits = train(name)
    _, labels = make_samples()
    assert losses[-1] < losses[0] and auc(labels, logits) > 0.7
    # when two ranks train it, each on half of every batch
    results = two_ranks.run(train_on_rank, name)
    # then their mean loss is that of one process, and all ranks give its logits and its AUC
    np.testing.assert_allclose(np.mean([of for of, _ in results], axis=0), losses, rtol=1e-4)
    for _, found in results:
        np.testing.assert_allclose(found, logits, rtol=1e-3, atol=1e-4)
        assert abs(auc(labels, found) - auc(labels, logits)) < 1e-3
