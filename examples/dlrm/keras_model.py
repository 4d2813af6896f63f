"""The DLRM of `model.py` as a Keras model, for Keras 2 and Keras 3."""

import tensorflow as tf

import group_embedding as ge
from dlrm import model

keras = tf.keras


@keras.utils.register_keras_serializable(package="examples")
class PairwiseDots(keras.layers.Layer):
    """[B, n, D] -> [B, n * (n - 1) / 2]: the dot product of each pair of vectors."""

    def call(self, vectors):
        return model.pairwise_dots(vectors)


def make_model(schema):
    """A compiled Keras model of {"numbers": [B, n], and ids [B, width] for each table}."""
    tables = [
        ge.TableConfig(
            feature.name,
            feature.num_rows,
            model.DIM,
            initializer=keras.initializers.TruncatedNormal(
                stddev=model.INITIAL_STDDEV, seed=model.seed_of(feature.name)
            ),
        )
        for feature in schema.categorical
    ]
    numbers = keras.Input((len(schema.numeric),), name="numbers")
    id_inputs = {t.name: keras.Input((None,), dtype="int64", name=t.name) for t in tables}
    features = [ge.FeatureConfig(table.name, table) for table in tables]
    embedded = ge.layers.GroupEmbedding(features, concat=True)(id_inputs)

    bottom = mlp(numbers, model.BOTTOM, "bottom")
    vectors = keras.layers.Concatenate()([bottom, embedded])
    dots = PairwiseDots()(keras.layers.Reshape((len(tables) + 1, model.DIM))(vectors))
    logits = mlp(keras.layers.Concatenate()([bottom, dots]), model.TOP, "top")

    made = keras.Model({"numbers": numbers, **id_inputs}, logits)
    made.compile(
        keras.optimizers.Adagrad(model.LEARNING_RATE, model.INITIAL_ACCUMULATOR),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return made


def mlp(inputs, units, name):
    for layer, num_units in enumerate(units):
        inputs = keras.layers.Dense(
            num_units,
            activation="relu" if layer < len(units) - 1 else None,
            kernel_initializer=keras.initializers.GlorotUniform(model.seed_of(f"{name}_{layer}")),
            name=f"{name}_{layer}",
        )(inputs)
    return inputs
