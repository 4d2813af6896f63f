"""The sizes of keyed tables in TensorBoard's event files."""

import glob

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras

v1 = tf.compat.v1


def read_events(folder):
    """{tag: {step: value}}"""
    found = {}
    for path in glob.glob(f"{folder}/*"):
        for event in v1.train.summary_iterator(path):
            for value in event.summary.value:
                is_tensor = value.HasField("tensor")
                number = tf.make_ndarray(value.tensor).item() if is_tensor else value.simple_value
                found.setdefault(value.tag, {})[event.step] = number
    return found


def test_hook_writes_every_few_steps(tmp_path):
    with tf.Graph().as_default():
        table = ge.get_embedding_variable("user", 4)
        step = v1.train.get_or_create_global_step()
        ids = tf.stack([[step, step + 100]])
        output = ge.group_embedding_lookup([table], [ids])[0]
        optimizer = ge.optimizers.wrap(v1.train.GradientDescentOptimizer(0.1))
        train = optimizer.minimize(tf.reduce_sum(output), global_step=step)
        hook = ge.EmbeddingVariableStatisticsHook(str(tmp_path), every_n_steps=2)

        with v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(5):
                session.run(train)

    events = read_events(tmp_path)
    assert events["user/keys"] == {1: 2, 3: 6, 5: 10}
    assert all(0 < load < 1 for load in events["user/load_factor"].values())
    assert all(size > 10 * 4 * 4 for size in events["user/memory_bytes"].values())


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
    assert keys[8] == 32


@pytest.mark.parametrize(
    "make",
    [
        lambda: ge.EmbeddingVariableStatisticsHook("logs", 0),
        lambda: ge.layers.EmbeddingVariableStatistics("logs", 0),
    ],
)
def test_a_step_of_nothing_is_refused(make):
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        make()
