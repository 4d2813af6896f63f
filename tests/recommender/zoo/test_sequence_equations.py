"""Models of sequences beside a plain statement of their equations, sample by sample."""

import numpy as np
import pytest
import tensorflow as tf
from recommender.zoo.model_cases import (
    DENSE,
    assert_same,
    ids_of,
    made,
    make_features,
    make_histories,
    plain_dense,
    plain_linear,
    plain_mlp,
    plain_vectors,
)

import group_embedding as ge

SAMPLES = 7
LENGTH = 4  # shorter than some histories
HISTORY = {"history": {"seen": "item"}, "max_length": LENGTH}


@pytest.fixture(scope="module")
def inputs():
    return make_histories(SAMPLES)


def by_sample(compute):
    """[samples, dim], of a function of a sample's number."""
    return tf.stack([compute(sample) for sample in range(SAMPLES)])


def keys_of(tables, inputs, sample):
    """[ids, dim] of the history of a sample."""
    return tf.gather(tables["items"], np.array(ids_of(inputs["seen"][sample], LENGTH), int))


def others(tables, inputs):
    """The vectors of features that are no history, and dense inputs."""
    vectors = plain_vectors(tables, inputs)
    return tf.concat([vectors["item"], vectors["user"], plain_dense(inputs)], axis=1)


def test_din(inputs):
    # given
    options = {"attention": [6], "hidden": [5], "activation": "relu"}
    model = made(ge.models.DIN(make_features(), dense=DENSE, **HISTORY, **options))

    # when its equations are written down
    def plain(tables):
        def interest(sample):
            keys = keys_of(tables, inputs, sample)
            query = tf.gather(tables["items"], inputs["item"][sample])[None] + 0 * keys
            pairs = tf.concat([query, keys, query - keys, query * keys], axis=1)
            weights = plain_linear(model.interest.weight, plain_mlp(model.interest.hidden, pairs))
            return tf.reduce_sum(weights * keys, axis=0)

        x = tf.concat([others(tables, inputs), by_sample(interest)], axis=1)
        return plain_linear(model.logit, plain_mlp(model.deep, x))

    # then
    assert_same(model, plain, inputs)


def gru_states(gru, keys, scales):
    """The states of a GRU, whose update gate has a scale at each step."""
    units = gru.units
    kernels, recurrents = tf.split(gru.kernel, 3, axis=1), tf.split(gru.recurrent, 3, axis=1)
    biases = tf.split(gru.bias, 3)
    state, states = tf.zeros([1, units]), []
    for key, scale in zip(tf.unstack(keys[:, None]), scales):
        update, reset = (
            tf.sigmoid(key @ kernels[i] + state @ recurrents[i] + biases[i]) for i in (0, 1)
        )
        new = tf.tanh(key @ kernels[2] + reset * (state @ recurrents[2]) + biases[2])
        state = (1 - scale * update) * state + scale * update * new
        states.append(state[0])
    return states


def test_dien(inputs):
    model = made(
        ge.models.DIEN(make_features(), dense=DENSE, hidden=[5], activation="relu", **HISTORY)
    )

    def plain(tables):
        def interest(sample):
            keys = keys_of(tables, inputs, sample)
            if not len(keys):
                return tf.zeros([4])
            states = tf.stack(gru_states(model.interests, keys, [1.0] * len(keys)))
            query = tf.gather(tables["items"], inputs["item"][sample])[None]
            towards = tf.matmul(query, model.attention.kernel)
            shares = tf.nn.softmax(tf.reduce_sum(states * towards, axis=1))
            return gru_states(model.evolution, states, tf.unstack(shares))[-1]

        x = tf.concat([others(tables, inputs), by_sample(interest)], axis=1)
        return plain_linear(model.logit, plain_mlp(model.deep, x))

    assert_same(model, plain, inputs)


def test_diens_auxiliary_loss(inputs):
    # given a model that is trained
    options = {"hidden": [5], "activation": "relu", "auxiliary": 0.5}
    model = made(ge.models.DIEN(make_features(), dense=DENSE, **HISTORY, **options))
    # when
    model(inputs, training=True)
    # then each state tells the next id from that of the sample before
    tables = {"items": tf.convert_to_tensor(model.embedding.tables["items"])}
    total, count = 0.0, 0
    for sample in range(SAMPLES):
        keys, others_keys = (
            keys_of(tables, inputs, s).numpy() for s in (sample, (sample - 1) % SAMPLES)
        )
        states = gru_states(model.interests, tf.constant(keys), [1.0] * len(keys))
        for t in range(len(keys) - 1):
            state = states[t].numpy()
            total += np.log1p(np.exp(-state @ keys[t + 1]))
            if t + 1 < len(others_keys):
                total += np.log1p(np.exp(state @ others_keys[t + 1]))
            count += 1
    np.testing.assert_allclose(model.losses, [0.5 * total / count], rtol=1e-4)


def normed(norm, x):
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / tf.sqrt(variance + 1e-6) * norm.gamma + norm.beta


def attended(layer, x, causal):
    """Multi-head attention of [ids, dim] to itself."""
    dim = x.shape[1] // layer.num_heads
    heads = []
    for head in range(layer.num_heads):
        query, key, value = (
            plain_linear(dense, x)[:, head * dim : (head + 1) * dim]
            for dense in (layer.query, layer.key, layer.value)
        )
        scores = query @ tf.transpose(key) / np.sqrt(dim)
        if causal:
            scores += np.triu(np.full(scores.shape, -np.inf, np.float32), 1)
        heads.append(tf.nn.softmax(scores) @ value)
    return plain_linear(layer.output_layer, tf.concat(heads, axis=1))


def leaky(x):
    return tf.maximum(x, 0) + LEAK * tf.minimum(x, 0)


# The slope of Keras's "leaky_relu" below 0.
LEAK = float(-tf.keras.activations.get("leaky_relu")(tf.constant([-1.0]))[0])


def test_bst(inputs):
    options = {"num_heads": 2, "hidden": [6], "dropout": 0.3}
    model = made(ge.models.BST(make_features(), dense=DENSE, **HISTORY, **options))
    (block,) = model.blocks

    def plain(tables):
        places = tf.convert_to_tensor(model.positions.positions)

        def interest(sample):
            keys = keys_of(tables, inputs, sample)
            target = tf.gather(tables["items"], inputs["item"][sample])[None]
            at = [*range(len(keys)), LENGTH]
            x = tf.concat([keys, target], axis=0) + tf.gather(places, at)
            x = normed(block.norms[0], x + attended(block.attention, x, causal=False))
            hidden = leaky(plain_linear(block.hidden, x))
            x = normed(block.norms[1], x + plain_linear(block.last, hidden))
            return tf.reshape(tf.scatter_nd([[p] for p in at], x, [LENGTH + 1, 4]), [-1])

        x = tf.concat([others(tables, inputs), by_sample(interest)], axis=1)
        x = leaky(plain_linear(model.deep.dense[0], x))
        return plain_linear(model.logit, x)

    assert_same(model, plain, inputs)


def sasrec_state(model, x):
    for block in model.blocks:
        x = x + attended(block.attention, normed(block.norms[0], x), causal=True)
        hidden = tf.nn.relu(plain_linear(block.hidden, normed(block.norms[1], x)))
        x = x + plain_linear(block.last, hidden)
    return normed(model.norm, x)


def hstu_state(model, x):
    for block in model.blocks:
        every = tf.nn.silu(plain_linear(block.split, normed(block.norms[0], x)))
        gate, value, query, key = tf.split(every, 4, axis=1)
        bias, rows, dim = tf.convert_to_tensor(block.bias), [], x.shape[1] // block.num_heads
        for q in range(len(x)):
            heads = []
            for head in range(block.num_heads):
                at = slice(head * dim, (head + 1) * dim)
                weights = [
                    tf.nn.silu(tf.reduce_sum(query[q, at] * key[k, at]) + bias[q - k]) / LENGTH
                    for k in range(q + 1)
                ]
                heads.append(tf.add_n([w * value[k, at] for k, w in enumerate(weights)]))
            rows.append(tf.concat(heads, axis=0))
        x = x + plain_linear(block.last, normed(block.norms[1], tf.stack(rows)) * gate)
    return normed(model.norm, x)


STATES = {"SASRec": sasrec_state, "HSTU": hstu_state}


def states_of(model, tables, inputs, sample):
    keys = keys_of(tables, inputs, sample)
    places = tf.convert_to_tensor(model.positions.positions)[: len(keys)]
    return STATES[type(model).__name__](model, keys + places)


@pytest.mark.parametrize("name", STATES)
def test_the_next_item(inputs, name):
    # given a model with two heads that ranks two candidates
    options = {"num_heads": 2, "num_blocks": 2, "max_length": LENGTH}
    item, seen, _ = make_features()
    features = [item, seen, ge.FeatureConfig("other", item.table)]
    model = getattr(ge.models, name)(features, history="seen", targets=["item", "other"], **options)
    model = made(model)
    batch = {"seen": inputs["seen"], "item": inputs["item"], "other": inputs["item"][::-1].copy()}

    def plain(tables):
        def logits(sample):
            if not ids_of(inputs["seen"][sample], LENGTH):
                return tf.zeros([2])
            state = states_of(model, tables, inputs, sample)[-1]
            candidates = [batch[target][sample] for target in ("item", "other")]
            return tf.linalg.matvec(tf.gather(tables["items"], candidates), state)

        return by_sample(logits)

    # then its logits are products with the last state, which user_vectors gives
    assert_same(model, plain, batch)
    rows = tf.gather(tf.convert_to_tensor(model.embedding.tables["items"]), batch["item"])
    products = tf.reduce_sum(model.user_vectors(batch) * rows, axis=1)
    np.testing.assert_allclose(products, model(batch)[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", STATES)
def test_the_next_item_at_each_position(inputs, name):
    # given targets behind each id: the one that followed, and another
    table = make_features()[0].table
    features = [ge.FeatureConfig(n, table) for n in ("seen", "next", "other")]
    model = made(
        getattr(ge.models, name)(
            features,
            history="seen",
            targets=["next", "other"],
            positions="all",
            max_length=LENGTH,
        )
    )
    rows = [ids_of(row, LENGTH) for row in inputs["seen"]]
    seen = tf.ragged.constant(rows, dtype=tf.int64, ragged_rank=1)
    batch = {"seen": seen, "next": (seen + 1) % 40, "other": (seen + 7) % 40}
    # when
    logits = model(batch)
    # then logits have a mask, and where it is True they are products with the state of the position
    assert logits.shape == (SAMPLES, LENGTH, 2)
    tables = {"items": tf.convert_to_tensor(model.embedding.tables["items"])}
    for sample, ids in enumerate(rows):
        assert logits._keras_mask[sample].numpy().tolist() == [p < len(ids) for p in range(LENGTH)]
        if not ids:
            continue
        states = states_of(model, tables, inputs, sample)
        for target, name in enumerate(("next", "other")):
            expected = tf.reduce_sum(tf.gather(tables["items"], batch[name][sample]) * states, 1)
            found = logits[sample, : len(ids), target]
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_dice():
    # given
    layer, x = ge.models.Dice(), np.random.default_rng(3).normal(size=(64, 5)).astype("float32")
    layer.build((None, 5))
    layer.alpha.assign([0.0, 0.1, 0.2, 0.3, 0.4])
    # when a batch is trained
    found = layer(x, training=True)
    # then
    p = 1 / (1 + np.exp(-(x - x.mean(0)) / np.sqrt(x.var(0) + 1e-8)))
    expected = p * x + (1 - p) * np.array([0.0, 0.1, 0.2, 0.3, 0.4]) * x
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
