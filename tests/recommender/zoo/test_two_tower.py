"""TwoTower and its losses beside a plain statement of their equations."""

import numpy as np
import pytest
import tensorflow as tf
from recommender.zoo.model_cases import (
    assert_same,
    made,
    make_features,
    make_histories,
    plain_linear,
    plain_vectors,
)

import group_embedding as ge

SAMPLES = 7


@pytest.fixture(scope="module")
def inputs():
    return make_histories(SAMPLES)


def make_two_tower(**options):
    return made(
        ge.models.TwoTower(
            make_features(),
            query=["user", "seen"],
            item=["item"],
            query_dense=["age"],
            item_dense={"prices": 2},
            units=[6, 3],
            **options,
        )
    )


def plain_towers(model, tables, inputs):
    vectors = plain_vectors(tables, inputs)
    of_query = [vectors["user"], vectors["seen"], inputs["age"][:, None]]
    of_item = [vectors["item"], inputs["prices"]]
    found = []
    for tower, columns in ((model.query_tower, of_query), (model.item_tower, of_item)):
        hidden = tf.nn.relu(plain_linear(tower.dense[0], tf.concat(columns, axis=1)))
        x = plain_linear(tower.dense[1], hidden)
        found.append(x / tf.norm(x, axis=1, keepdims=True))
    return found


def test_two_tower(inputs):
    # given
    model = make_two_tower(temperature=0.5)

    # when / then
    def plain(tables):
        query, item = plain_towers(model, tables, inputs)
        return tf.reduce_sum(query * item, axis=1, keepdims=True) / 0.5

    assert_same(model, plain, inputs)
    # and each tower needs its own inputs alone
    tables = {n: tf.convert_to_tensor(t) for n, t in model.embedding.tables.items()}
    query, item = plain_towers(model, tables, inputs)
    of_query = {name: inputs[name] for name in ("user", "seen", "age")}
    np.testing.assert_allclose(model.query_vectors(of_query), query, rtol=1e-4, atol=1e-5)
    of_item = {name: inputs[name] for name in ("item", "prices")}
    np.testing.assert_allclose(model.item_vectors(of_item), item, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("corrects", ["nothing", "log_q", "item_id", "a feature"])
def test_two_towers_loss(inputs, corrects):
    # given a batch in which one item is twice, and how often items are in batches
    log_q = np.log(np.random.default_rng(1).uniform(0.01, 1, SAMPLES)).astype("float32")
    ids = inputs["item"].copy()
    ids[5] = ids[4]
    batch = {**inputs, "item": ids, "log_q": log_q, "id": ids}
    options = {
        "nothing": {},
        "log_q": {"log_q": "log_q"},
        "item_id": {"item_id": "id", "log_q": "log_q"},
        "a feature": {"item_id": "item", "log_q": "log_q"},
    }[corrects]
    model = make_two_tower(**options)
    # when it trains
    model(batch, training=True)
    # then its loss is that of a softmax over the items of the batch
    tables = {n: tf.convert_to_tensor(t) for n, t in model.embedding.tables.items()}
    query, item = (x.numpy() for x in plain_towers(model, tables, batch))
    scores = query @ item.T / 0.05 - (0 if corrects == "nothing" else log_q)
    losses = []
    for i in range(SAMPLES):
        counts_twice = corrects in ("nothing", "log_q")
        count = [j == i or counts_twice or ids[j] != ids[i] for j in range(SAMPLES)]
        losses.append(np.log(np.exp(scores[i] - scores[i, i])[count].sum()))
    np.testing.assert_allclose(model.losses, [np.mean(losses)], rtol=1e-4)


@pytest.mark.parametrize("form", ["vector", "column", "ragged", "sparse", "routed"])
def test_an_items_feature_is_its_id(inputs, form):
    # given a model that reads the id from a feature, and one that has an input for it
    named = make_two_tower(item_id="id", num_buckets=100)
    by_feature = make_two_tower(item_id="item", num_buckets=100)
    batch = {**inputs, "id": inputs["item"]}
    # when a batch has the feature in one of its forms
    column = tf.constant(inputs["item"])[:, None]
    forms = {
        "vector": lambda: inputs,
        "column": lambda: {**inputs, "item": column},
        "ragged": lambda: {**inputs, "item": tf.RaggedTensor.from_tensor(column)},
        "sparse": lambda: {**inputs, "item": tf.sparse.from_dense(column + 1)},
        "routed": lambda: by_feature.route(inputs),
    }
    given = forms[form]()
    if form == "sparse":  # from_dense leaves zeros out
        given["item"] = given["item"].with_values(given["item"].values - 1)
    named(batch, training=True), by_feature(given, training=True)
    # then the losses agree, and the signature of a served model has the feature once
    np.testing.assert_allclose(by_feature.losses, named.losses, rtol=1e-5)
    assert by_feature.serving_signature()["item"].shape.rank == 2
    assert "id" not in by_feature.serving_signature()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"item_id": "user"}, r"item_id to name .*\['item'\], got 'user'"),
        ({"item_id": "age"}, "item_id to name .*got 'age'"),
        ({"log_q": "item"}, "log_q to name an input of its own, got 'item'"),
    ],
)
def test_inputs_that_are_no_ids_of_items(options, words):
    with pytest.raises(ValueError, match=words):
        make_two_tower(**options)


def test_items_are_counted_while_a_model_trains():
    # given items of which one is in each batch and four are in a quarter
    frequency = ge.models.ItemFrequency(num_buckets=1000, rate=0.1)
    rng = np.random.default_rng(2)
    # when
    for _ in range(150):
        frequency(tf.constant([1, 1, 2 + rng.integers(0, 4)]), training=True)
    q = tf.exp(frequency(tf.constant([1, 2, 3, 4, 5]))).numpy()
    # then the estimates are near the shares of batches that have them
    assert abs(q[0] - 1) < 0.01 and np.all(q[1:] > 0.1) and np.all(q[1:] < 0.45)
