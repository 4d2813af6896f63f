"""Keras models that hold a `GroupEmbedding`, and the ways to save them. What a form has is in
saving_cases.py."""

import numpy as np
import tensorflow as tf
from support.programs.saving_data import DIMS, PROBE, batch, option

import group_embedding as ge
from group_embedding import exchange

keras = tf.keras


def keras_inputs(keys, num_tables):
    inputs = {f"x{i}": tf.constant(keys) for i in range(num_tables)}
    if num_tables == 3:  # of the table that is no keyed one
        inputs["x1"] = tf.constant(keys % 40)
    return inputs


class Functional:
    """A functional Keras model; saved as `.keras`."""

    trains_on = True

    def __init__(self, name, num_tables):
        self.name, self.num_tables = name, num_tables
        self.model = self.make()
        self.model(keras_inputs(PROBE, self.num_tables))
        self.model.compile(
            ge.DistributedOptimizer(ge.optimizers.wrap(keras.optimizers.Adam(0.05))), "mse"
        )

    def layer(self):
        tables = [
            ge.TableConfig(f"{self.name}_{i}", None, DIMS[i], ev_option=option(i))
            for i in range(self.num_tables)
        ]
        if self.num_tables == 3:  # one that is no keyed table
            tables[1] = ge.TableConfig(f"{self.name}_1", 40, DIMS[1])
        features = [ge.FeatureConfig(f"x{i}", table) for i, table in enumerate(tables)]
        return ge.layers.GroupEmbedding(features, concat=True, name="embedding")

    def make(self):
        inputs = {
            f"x{i}": keras.Input([None], dtype="int64", name=f"x{i}")
            for i in range(self.num_tables)
        }
        return keras.Model(inputs, keras.layers.Dense(1)(self.layer()(inputs)))

    def train(self, step):
        keys = batch(step)
        self.model.train_on_batch(
            keras_inputs(keys, self.num_tables), np.ones([len(keys), 1], np.float32)
        )

    def predict(self):
        return self.model(keras_inputs(PROBE, self.num_tables)).numpy()

    def save(self, folder):
        self.model.save(self.path(folder, "model.keras"))

    def load(self, folder):
        self.model = keras.models.load_model(f"{folder}/rank_0_model.keras")
        ge.DistributedOptimizer(ge.optimizers.wrap(self.model.optimizer))

    def path(self, folder, name):
        return f"{folder}/rank_{exchange.current().rank}_{name}"


class FunctionalWeights(Functional):
    """`.weights.h5`."""

    def save(self, folder):
        self.model.save_weights(self.path(folder, "model.weights.h5"))

    def load(self, folder):
        self.model.optimizer.build(self.model.trainable_variables)
        self.model.load_weights(f"{folder}/rank_0_model.weights.h5")


class FunctionalCheckpoint(Functional):
    """`tf.train.Checkpoint` of a Keras model."""

    def save(self, folder):
        tf.train.Checkpoint(model=self.model).write(self.path(folder, "model"))

    def load(self, folder):
        tf.train.Checkpoint(model=self.model).read(f"{folder}/rank_0_model")


class FunctionalExport(Functional):
    """`Model.export`, which serves."""

    trains_on = False

    def save(self, folder):
        self.model.export(folder)

    @classmethod
    def served(cls, folder, num_tables):
        loaded = tf.saved_model.load(folder)
        serve = loaded.signatures["serving_default"]
        # A product fused with its bias rounds otherwise on some processors
        tf.config.optimizer.set_experimental_options({"remapping": False})
        (output,) = serve(**keras_inputs(PROBE, num_tables)).values()
        return output.numpy()


@keras.utils.register_keras_serializable("saving_cases")
class Tower(keras.layers.Layer):
    """A layer that holds the embedding, and is in a model."""

    def __init__(self, case=None, num_tables=1, **kwargs):
        super().__init__(**kwargs)
        self.case, self.num_tables = case, num_tables
        source = Functional.__new__(Functional)
        source.name, source.num_tables = case, num_tables
        self.embedding = source.layer()

    def call(self, inputs):
        return self.embedding(inputs)

    def get_config(self):
        return {**super().get_config(), "case": self.case, "num_tables": self.num_tables}


@keras.utils.register_keras_serializable("saving_cases")
class SubclassedModel(keras.Model):
    def __init__(self, case=None, num_tables=1, nested=False, **kwargs):
        super().__init__(**kwargs)
        self.case, self.num_tables, self.nested = case, num_tables, nested
        tower = Tower(case, num_tables)
        self.tower = tower if nested else tower.embedding
        self.head = keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(self.tower(inputs))

    def get_config(self):
        config = {"case": self.case, "num_tables": self.num_tables, "nested": self.nested}
        return {**super().get_config(), **config}


class Subclassed(Functional):
    """A subclassed Keras model; saved as `.keras`."""

    def make(self):
        return SubclassedModel(self.name, self.num_tables)


class SubclassedWeights(FunctionalWeights):
    """A subclassed Keras model; `.weights.h5`."""

    make = Subclassed.make


class Nested(Functional):
    """A subclassed model with a layer that holds the embedding; saved as `.keras`."""

    def make(self):
        return SubclassedModel(self.name, self.num_tables, nested=True)


class NestedWeights(FunctionalWeights):
    """A subclassed model with a layer that holds the embedding; `.weights.h5`."""

    make = Nested.make
