"""A small batch, features, and the plain statement of a lookup, for the tests of all models."""

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras

SAMPLES, LENGTH = 24, 5


def make_features(dim=4):
    """An item, the mean of items seen before, and a user."""
    start = keras.initializers.RandomNormal(stddev=0.5, seed=1)
    items = ge.TableConfig("items", 40, dim, initializer=start)
    users = ge.TableConfig("users", 20, dim, initializer=start)
    return [
        ge.FeatureConfig("item", items),
        ge.FeatureConfig("seen", items),
        ge.FeatureConfig("user", users),
    ]


DENSE = {"age": 1, "prices": 2}


def make_inputs(seed=0, samples=SAMPLES):
    rng = np.random.default_rng(seed)
    return {
        "item": rng.integers(0, 40, samples),
        "seen": rng.integers(-1, 40, (samples, LENGTH)),
        "user": rng.integers(0, 20, samples),
        "age": rng.normal(size=samples).astype("float32"),
        "prices": rng.normal(size=(samples, 2)).astype("float32"),
    }


def make_histories(samples):
    """Inputs of which one has seen no items, and one as many as there may be."""
    inputs = make_inputs(samples=samples)
    inputs["seen"][2] = -1
    inputs["seen"][3] = [1, 2, 3, 4, 5]
    return inputs


def labels_of(inputs):
    return ((inputs["item"] + inputs["user"]) % 2).astype("float32")


def randomise(model, seed=5):
    """Gives every weight other values than zeros and ones."""
    rng = np.random.default_rng(seed)
    model.build()
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape).astype("float32") * 0.4)


def made(model):
    """The model, with the weights of `randomise`."""
    randomise(model)
    return model


def tables_of(model):
    return {name: tf.convert_to_tensor(t) for name, t in model.embedding.tables.items()}


def plain_vectors(tables, inputs, suffix=""):
    """{feature: [samples, dim]}: rows gathered one by one, "seen" averaged."""
    items, users = tables[f"items{suffix}"], tables[f"users{suffix}"]
    is_id = tf.cast(inputs["seen"] >= 0, tf.float32)[..., None]
    seen = tf.gather(items, tf.maximum(inputs["seen"], 0)) * is_id
    return {
        "item": tf.gather(items, inputs["item"]),
        "seen": tf.math.divide_no_nan(tf.reduce_sum(seen, 1), tf.reduce_sum(is_id, 1)),
        "user": tf.gather(users, inputs["user"]),
    }


def ids_of(row, length):
    """The newest ids of a history."""
    return [int(i) for i in row if i >= 0][-length:]


def plain_dense(inputs):
    return tf.concat([inputs["age"][:, None], inputs["prices"]], axis=1)


def plain_mlp(mlp, x):
    """relu(x W + b), layer by layer."""
    for layer in mlp.dense:
        x = tf.nn.relu(tf.matmul(x, layer.kernel) + layer.bias)
    return x


def plain_linear(layer, x):
    return tf.matmul(x, layer.kernel) + layer.bias


def value_and_gradients(model, compute):
    """The result of `compute`, and its gradients by all trainable weights as whole tensors."""
    weights = model.trainable_weights
    with tf.GradientTape() as tape:
        outputs = [tf.cast(out, tf.float32) for out in tf.nest.flatten(compute())]
        flat = tf.concat([tf.reshape(out, [-1]) for out in outputs], axis=0)
        # Every number has a factor of its own.
        loss = tf.reduce_sum(flat * tf.cos(tf.range(float(len(flat)))))
    return outputs, [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]


def assert_same(model, plain, inputs):
    """The model gives what its equations give, and so do its gradients.

    Args:
      plain: a function of tables, a dict by name, that returns the outputs.
    """
    found = value_and_gradients(model, lambda: model(inputs))
    expected = value_and_gradients(model, lambda: plain(tables_of(model)))
    for one, other in zip(found[0] + found[1], expected[0] + expected[1]):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
    assert float(tf.reduce_max(tf.abs(found[0][0]))) > 1e-3
