"""A model of every form, and every way to save it: for tests that load it in another process.

A case makes its model from its own name, so that two processes make the same one. It trains on
batches that are known beforehand, each rank on its part of each.

    train(name, folder) in one process:   3 steps, save, predict, 3 steps more, predict
    resume(name, folder) in another one:  load, predict, 3 steps more, predict

Both return what was predicted, [after 3 steps, after 6]: the same numbers to the bit, where the
saved model can be trained on.
"""

import pickle
import shutil
import sys
import traceback
from pathlib import Path

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange, sok

v1 = tf.compat.v1
keras = tf.keras
IS_KERAS_3 = getattr(keras, "__version__", "2").startswith("3")
NUM_STEPS = 3
DIMS = [3, 5, 4]
FILTERS = [
    ge.CounterFilter(filter_freq=2),
    None,
    ge.CBFFilter(filter_freq=2, max_element_size=1000, false_positive_probability=0.001),
]
# Keys that training meets, some of them once, and one that it never does.
KNOWN = np.random.default_rng(7).integers(0, 2**62, 30, dtype=np.int64)
PROBE = np.append(KNOWN, 5).reshape(-1, 1)


def batch(step):
    """int64 [12, 2]: this rank's samples of a step, some keys of which come in no other step."""
    rng = np.random.default_rng([step, 11])
    keys = rng.choice(KNOWN[:20], (12, 2))
    keys[step % 12, 0] = KNOWN[20 + step]
    return keys[exchange.current().rank :: exchange.current().num_ranks]


def option(i):
    return ge.EmbeddingVariableOption(filter_option=FILTERS[i])


class Eager:
    """`tf.train.Checkpoint` of tables, dense weights and their optimizer, in eager code."""

    trains_on = True

    def __init__(self, name, num_tables):
        self.tables = [
            ge.get_embedding_variable(f"{name}_{i}", DIMS[i], ev_option=option(i))
            for i in range(num_tables)
        ]
        self.dense = tf.Variable(tf.ones([sum(DIMS[:num_tables]), 1]))
        self.optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(keras.optimizers.Adam(0.05)))
        self.train_step = tf.function(self._train_step)
        self.checkpoint = tf.train.Checkpoint(
            tables=self.tables, dense=self.dense, optimizer=self.optimizer
        )

    def output(self, keys):
        vectors = ge.group_embedding_lookup_sparse(
            self.tables, [tf.RaggedTensor.from_tensor(keys)] * len(self.tables), "mean", concat=True
        )
        return tf.matmul(vectors, self.dense)

    def _train_step(self, keys):
        variables = [*self.tables, self.dense]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.output(keys) - 1.0) ** 2)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    def train(self, step):
        self.train_step(tf.constant(batch(step)))

    def predict(self):
        return self.output(tf.constant(PROBE)).numpy()

    def path(self, folder):
        """Ranks other than 0 give a path of their own, from which nothing is restored."""
        return f"{folder}/rank_{exchange.current().rank}/model"

    def save(self, folder):
        self.checkpoint.write(self.path(folder))

    def load(self, folder):
        self.checkpoint.read(f"{folder}/rank_0/model").assert_existing_objects_matched()


class EagerChanges(Eager):
    """A full checkpoint of two steps, and one of what changed since."""

    def train(self, step):
        super().train(step)
        if step == 1:
            self.checkpoint.save(self.path(self.folder))

    def save(self, folder):
        ge.checkpoint.save_changes(self.checkpoint, self.path(folder))

    def load(self, folder):
        # The save counter is among the objects of `save`, not among those of `write`.
        self.checkpoint.restore(tf.train.latest_checkpoint(f"{folder}/rank_0"))


class EagerModule(Eager):
    """`tf.saved_model.save` of a module's function, which serves."""

    trains_on = False

    def save(self, folder):
        module = tf.Module()
        module.tables, module.dense = self.tables, self.dense
        module.predict = tf.function(
            self.output, input_signature=[tf.TensorSpec([None, 1], tf.int64)]
        )
        tf.saved_model.save(module, folder)

    @classmethod
    def served(cls, folder, num_tables):
        loaded = tf.saved_model.load(folder)  # has the tables as long as it is there
        return loaded.predict(tf.constant(PROBE)).numpy()


class Graph:
    """`tf.compat.v1.train.Saver`, or another one, of a graph of TensorFlow 1."""

    trains_on = True
    saver_class = v1.train.Saver

    def __init__(self, name, num_tables):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.tables = [
                ge.get_embedding_variable(f"{name}_{i}", DIMS[i], ev_option=option(i))
                for i in range(num_tables)
            ]
            self.keys = v1.placeholder(tf.int64, [None, None])
            output = self._output(num_tables)
            step = v1.train.get_or_create_global_step()
            optimizer = ge.optimizers.wrap(v1.train.AdamOptimizer(0.05))
            loss = tf.reduce_mean((output - 1.0) ** 2)
            self.train_op = ge.DistributedOptimizer(optimizer).minimize(loss, step)
            # Apart from training, as evaluation is: a key that is read gets no row.
            self.evaluated = self._output(num_tables)
            self.saver = self.saver_class()
            initialize = v1.global_variables_initializer()
        self.session = v1.Session(graph=self.graph)
        self.session.run(initialize)

    def _output(self, num_tables):
        ids = tf.RaggedTensor.from_tensor(self.keys)
        vectors = ge.group_embedding_lookup_sparse(
            self.tables, [ids] * num_tables, "mean", concat=True
        )
        with v1.variable_scope("head", reuse=v1.AUTO_REUSE):
            dense = v1.get_variable(
                "dense", [sum(DIMS[:num_tables]), 1], initializer=v1.ones_initializer()
            )
        return tf.matmul(vectors, dense)

    def train(self, step):
        self.session.run(self.train_op, {self.keys: batch(step)})

    def predict(self):
        return self.session.run(self.evaluated, {self.keys: PROBE})

    def save(self, folder):
        with self.graph.as_default():
            self.saver.save(self.session, f"{folder}/model")

    def load(self, folder):
        with self.graph.as_default():
            self.saver.restore(self.session, f"{folder}/model")


class GraphOfRanks(Graph):
    """`ge.Saver`."""

    saver_class = ge.Saver


class GraphChanges(Graph):
    """A full checkpoint of two steps, and one of what changed since."""

    saver_class = ge.Saver

    def train(self, step):
        super().train(step)
        if step == 1:
            with self.graph.as_default():
                self.saver.save(self.session, f"{self.folder}/full")

    def save(self, folder):
        with self.graph.as_default():
            ge.checkpoint.save_changes(self.saver, self.session, f"{folder}/model")


class GraphModel(Graph):
    """A SavedModel of a graph, which serves in a session."""

    trains_on = False

    def save(self, folder):
        with self.graph.as_default():
            v1.saved_model.simple_save(
                self.session, f"{folder}/model", {"keys": self.keys}, {"output": self.evaluated}
            )

    @classmethod
    def served(cls, folder, num_tables):
        with tf.Graph().as_default(), v1.Session() as session:
            loaded = v1.saved_model.load(session, ["serve"], f"{folder}/model")
            signature = loaded.signature_def["serving_default"]
            keys, output = signature.inputs["keys"].name, signature.outputs["output"].name
            return session.run(output, {keys: PROBE})


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
        ge.optimizers.wrap(self.model.optimizer)

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


class Sok:
    """`sok.dump` of tables and their optimizer; dense weights go their own way."""

    trains_on = True

    def __init__(self, name, num_tables):
        self.tables = [
            sok.DynamicVariable(dimension=DIMS[i], initializer="0.25", name=f"{name}_{i}")
            for i in range(num_tables)
        ]
        if num_tables == 3:  # one that is no keyed table
            self.tables[1] = sok.Variable(
                np.ones([40, DIMS[1]], np.float32), mode="distributed", name=f"{name}_static"
            )
        self.optimizer = sok.OptimizerWrapper(keras.optimizers.Adagrad(0.05))
        self.train_step = tf.function(self._train_step)

    def outputs(self, keys):
        ids = [tf.RaggedTensor.from_tensor(keys)] * len(self.tables)
        if len(self.tables) == 3:
            ids[1] = tf.RaggedTensor.from_tensor(keys % 40)
        return sok.lookup_sparse(self.tables, ids, combiners=["mean"] * len(self.tables))

    def _train_step(self, keys):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum((o - 1.0) ** 2) for o in self.outputs(keys)])
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.tables), self.tables))

    def train(self, step):
        self.train_step(tf.constant(batch(step)))

    def predict(self):
        return tf.concat(self.outputs(tf.constant(PROBE)), -1).numpy()

    def save(self, folder):
        sok.dump(f"{folder}/dump", self.tables, self.optimizer)

    def load(self, folder):
        sok.load(f"{folder}/dump", self.tables, self.optimizer)


class Estimator:
    """An Estimator's model_dir."""

    trains_on = True

    def __init__(self, name, num_tables):
        self.name, self.num_tables, self.estimator = name, num_tables, None

    def model_fn(self, features, labels, mode):
        ids = tf.RaggedTensor.from_tensor(features["keys"])
        tables = [
            ge.get_embedding_variable(f"{self.name}_{i}", DIMS[i], ev_option=option(i))
            for i in range(self.num_tables)
        ]
        vectors = ge.group_embedding_lookup_sparse(
            tables, [ids] * self.num_tables, "mean", concat=True
        )
        output = v1.layers.dense(vectors, 1, name="head", kernel_initializer=v1.ones_initializer())
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions={"output": output})
        loss = tf.reduce_mean((output - 1.0) ** 2)
        optimizer = ge.optimizers.wrap(v1.train.AdamOptimizer(0.05))
        train = ge.DistributedOptimizer(optimizer).minimize(
            loss, v1.train.get_or_create_global_step()
        )
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def _input(self, keys):
        data = tf.data.Dataset.from_tensors({"keys": keys})
        return data.map(lambda features: (features, tf.zeros([])))

    def train(self, step):
        if self.estimator is None:
            self.load(self.folder)
        self.estimator.train(lambda: self._input(batch(step)))

    def predict(self):
        predicted = self.estimator.predict(lambda: self._input(PROBE))
        return np.stack([each["output"] for each in predicted])

    def save(self, folder):
        """It saves whenever `train` ends; what follows goes into a folder of its own."""
        shutil.copytree(f"{folder}/model", f"{folder}/saved")

    def load(self, folder):
        saved = f"{folder}/saved"
        self.estimator = tf.estimator.Estimator(
            self.model_fn, saved if tf.io.gfile.exists(saved) else f"{folder}/model"
        )


FORMS = {
    form.__name__: form
    for form in [
        Eager, EagerChanges, EagerModule, Graph, GraphOfRanks, GraphChanges, GraphModel, Functional,
        FunctionalWeights, FunctionalCheckpoint, FunctionalExport, Subclassed, SubclassedWeights,
        Nested, NestedWeights, Sok, *([Estimator] if hasattr(tf, "estimator") else []),
    ]
}  # fmt: skip
NAMES = [f"{form}_{num_tables}" for form in FORMS for num_tables in (1, 2, 3)]


def make(name, folder):
    form, num_tables = name.split("_")
    tf.keras.utils.set_random_seed(3)
    case = FORMS[form](name.lower(), int(num_tables))
    case.folder = folder
    return case


def train(name, folder):
    """The first process's part; returns what was predicted, [3 steps, 6 steps]."""
    case = make(name, folder)
    for step in range(NUM_STEPS):
        case.train(step)
    case.save(folder)
    return [case.predict(), _train_on(case)]


def resume(name, folder):
    """The second process's part. A model that only serves has no second prediction."""
    form, num_tables = name.split("_")
    if not FORMS[form].trains_on:
        return [FORMS[form].served(folder, int(num_tables)), None]
    case = make(name, folder)
    case.load(folder)
    return [case.predict(), _train_on(case)]


def _train_on(case):
    for step in range(NUM_STEPS, 2 * NUM_STEPS):
        case.train(step)
    return case.predict()


def run_all(part, names, folder):
    """{name: what `part`, train or resume, returned, or the text of its error}."""
    results = {}
    for name in names:
        (Path(folder) / name).mkdir(exist_ok=True)
        try:
            results[name] = part(name, f"{folder}/{name}")
        except Exception:
            results[name] = traceback.format_exc()
    return results


if __name__ == "__main__":  # python saving_cases.py train|resume FOLDER
    part, folder = sys.argv[1:]
    results = run_all({"train": train, "resume": resume}[part], NAMES, folder)
    Path(folder, f"{part}.pickle").write_bytes(pickle.dumps(results))
