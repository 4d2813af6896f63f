"""Models train on MovieLens-100K, and are saved, loaded, packed for and exported."""

import numpy as np
import pytest
import tensorflow as tf
from model_zoo.training import LIKES, NEXT, train
from support.session.tiers import by_day

from group_embedding.keras_compat import keras

# Epochs of a few steps each.
TRAINS = {
    **dict.fromkeys(LIKES, {"epochs": 5, "batch_size": 256}),
    **dict.fromkeys(NEXT, {"epochs": 40, "batch_size": 16, "length": 10}),
    "two_tower": {"epochs": 10, "batch_size": 128},
}


# One of each way to train by day: on likes, on sequences, with two towers.
BY_DAY, SOMETIMES = (), {"sasrec", "two_tower"}


@pytest.mark.parametrize("name", by_day(TRAINS, BY_DAY, set(TRAINS) - SOMETIMES))
def test_a_model_trains_and_is_saved_and_served(name, ratings, tmp_path):
    # given a model that was trained
    model, inputs, quality = train(name, ratings, **TRAINS[name])
    # then it is better than a guess, 0.5
    assert quality["auc"] > 0.55, quality
    # when it is saved and loaded, and when a dataset packs its ids
    inputs = tf.nest.map_structure(lambda x: x[:16], inputs)
    expected = tf.nest.flatten(model(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    packed = next(iter(tf.data.Dataset.from_tensors(inputs).map(model.route)))
    # then it gives the same
    for found in (loaded(inputs), model(packed)):
        for one, other in zip(tf.nest.flatten(found), expected):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    # and so does the model that is served
    model.export(tmp_path / "exported")
    serve = tf.saved_model.load(str(tmp_path / "exported")).signatures["serving_default"]
    served = serve(**{n: as_served(inputs[n], s) for n, s in model.serving_signature().items()})
    for one, other in zip(tf.nest.flatten(served), expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def as_served(values, spec):
    """Values in the form that an exported model takes."""
    if isinstance(values, tf.RaggedTensor):
        return values.to_tensor(-1)
    values = tf.cast(values, spec.dtype)
    return values[:, None] if values.shape.rank < spec.shape.rank else values
