"""A tf.Module that holds models is saved, whatever the models were trained on."""

import numpy as np
import tensorflow as tf
from recommender.zoo.model_cases import labels_of, make_features, make_inputs

import group_embedding as ge


class Served(tf.Module):
    """Models behind one signature."""

    def __init__(self, models):
        super().__init__()
        self.models = models
        signature = models[0].serving_signature()
        self.serve = tf.function(self._serve, input_signature=[signature])

    def _serve(self, inputs):
        return {model.name: model(inputs) for model in self.models}


def make_models():
    """One of combined features, and one that reads a history."""
    history = {"history": {"seen": "item"}, "max_length": 4}
    return [
        ge.models.DLRM(make_features(), top=[4], name="dlrm"),
        ge.models.DIN(make_features(), attention=[4], hidden=[4], name="din", **history),
    ]


def make_batch():
    return {name: tf.constant(make_inputs()[name]) for name in ("item", "seen", "user")}


def train_step(model, batch):
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
    labels = labels_of(make_inputs())[:, None]
    with tf.GradientTape() as tape:
        logits = model(batch, training=True)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
    weights = model.trainable_weights
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))


def test_a_module_of_models_that_were_trained_on_packed_ids(tmp_path):
    # given models that were trained on a batch with packed ids
    models, dense = make_models(), make_batch()
    for model in models:
        train_step(model, model.route(dense))
    expected = {model.name: model(dense) for model in models}
    # when a module that holds them is saved, and loaded
    module = Served(models)
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)
    loaded = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    # then it gives what the models give
    columns = {name: ids if ids.shape.rank == 2 else ids[:, None] for name, ids in dense.items()}
    found = loaded(**columns)
    assert found.keys() == expected.keys()
    for name, logits in expected.items():
        np.testing.assert_allclose(found[name], logits, rtol=1e-5, atol=1e-6, err_msg=name)
