"""Keyed tables in checkpoints of Estimators and in Keras `save_weights`."""

import checkpoint_cases as cases
import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

v1 = tf.compat.v1
BATCHES = cases.batches()
KERAS_3 = getattr(tf.keras, "__version__", "2").startswith("3")


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
def test_an_estimator_goes_on_where_it_ended(tmp_path):
    def model_fn(features, labels, mode):
        v1.train.get_or_create_global_step()
        table = ge.get_embedding_variable("user", cases.DIM)
        (rows,) = ge.group_embedding_lookup([table], [features["keys"]])
        loss = tf.reduce_sum(rows**2)
        optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
        train = optimizer.minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def input_fn(begin, end):
        keys = tf.data.Dataset.from_tensor_slices({"keys": BATCHES[begin:end]})
        return keys.map(lambda keys: (keys, tf.zeros([])))

    def train(folder, *parts):
        config = tf.estimator.RunConfig(str(tmp_path / folder), 1, save_checkpoints_steps=2)
        for begin, end in parts:
            estimator = tf.estimator.Estimator(model_fn, config=config)
            estimator.train(lambda begin=begin, end=end: input_fn(begin, end))
        return estimator

    whole = train("whole", (0, 10))
    parts = train("parts", (0, 3), (3, 10))

    expected, found = (cases.content(e.latest_checkpoint()) for e in (whole, parts))
    assert found == expected
    np.testing.assert_array_equal(
        *(e.evaluate(lambda: input_fn(0, 3))["loss"] for e in (whole, parts))
    )


class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.table = ge.get_embedding_variable("keras", cases.DIM)
        self.dense = tf.keras.layers.Dense(1)

    def call(self, keys):
        (rows,) = ge.group_embedding_lookup([self.table], [keys])
        return self.dense(tf.reduce_sum(rows, 1))


@pytest.mark.skipif(KERAS_3, reason="Keras 3 saves no weights in TensorFlow's format")
def test_keras_save_weights_in_tensorflows_format(tmp_path):
    first, second = Model(), Model()
    keys = np.unique(BATCHES)
    first.table.insert(keys, np.random.default_rng(0).normal(size=[len(keys), cases.DIM]))
    expected = first(BATCHES[0])

    first.save_weights(f"{tmp_path}/weights", save_format="tf")
    second(BATCHES[0])
    second.load_weights(f"{tmp_path}/weights").assert_consumed()

    np.testing.assert_array_equal(second(BATCHES[0]), expected)


@pytest.mark.skipif(KERAS_3, reason="Keras 3 does not track it in layers that are not ours")
@pytest.mark.parametrize("name", ["model.weights.h5", "model.h5"])
def test_keras_does_not_save_a_model_without_its_rows(name, tmp_path):
    model = Model()
    model(BATCHES[0])

    with pytest.raises(TypeError, match="table 'keras.*save_format='tf'"):
        model.save_weights(f"{tmp_path}/{name}")
