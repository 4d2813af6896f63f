"""Statistics of a model's tables in event files, by a Keras callback."""

import numpy as np
import pytest
from variables.event_files import read_events

import group_embedding as ge
from group_embedding.keras_compat import keras


def test_callback_writes_after_epochs_and_batches(tmp_path):
    pytest.importorskip(
        "tensorboard", reason="tf.summary needs it, and TensorFlow 2.21 has it apart"
    )
    table = ge.TableConfig("user", None, 4)
    layer = ge.layers.GroupEmbedding([ge.FeatureConfig("user", table)], concat=True)
    inputs = {"user": keras.Input((2,), dtype="int64", name="user")}
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile(ge.optimizers.wrap(keras.optimizers.SGD(0.1)), "mse")
    callback = ge.layers.EmbeddingVariableStatistics(str(tmp_path), every_n_batches=3)

    ids = {"user": np.arange(32).reshape(16, 2)}
    model.fit(ids, np.zeros(16), batch_size=4, epochs=2, verbose=0, callbacks=[callback])

    (keys,) = (values for tag, values in read_events(tmp_path).items() if tag.endswith("/keys"))
    assert set(keys) == {3, 4, 6, 8}
    (rates,) = (values for tag, values in read_events(tmp_path).items() if "hit_rate" in tag)
    assert rates[8] == 1 and rates[3] < 1  # rates are those since the last time
    assert keys[8] == 32


def test_a_number_of_batches_that_is_none_is_refused():
    with pytest.raises(
        ValueError, match="expected every_n_batches to be an int of at least 1, got"
    ):
        ge.layers.EmbeddingVariableStatistics("logs", 0)
