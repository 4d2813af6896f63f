"""Models of tables in eager code, in graphs of TensorFlow 1, under SOK's names and in Estimators,
and the ways to save them. What a form has is in saving_cases.py."""

import shutil

import numpy as np
import tensorflow as tf
from support.programs.saving_data import DIMS, PROBE, batch, option

import group_embedding as ge
from group_embedding import exchange, sok

v1 = tf.compat.v1
keras = tf.keras


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
            self.estimator = self._in(f"{self.folder}/model")
        self.estimator.train(lambda: self._input(batch(step)))

    def predict(self):
        predicted = self.estimator.predict(lambda: self._input(PROBE))
        return np.stack([each["output"] for each in predicted])

    def save(self, folder):
        """Copies the save that `train` made at its end; later saves have a folder of their own."""
        self._copy(f"{folder}/model", f"{folder}/saved")

    def load(self, folder):
        resumed = f"{folder}/resumed_by_{exchange.current().num_ranks}"
        self._copy(f"{folder}/saved", resumed)
        self.estimator = self._in(resumed)

    def _in(self, folder):
        if exchange.current().num_ranks == 1:
            return tf.estimator.Estimator(self.model_fn, folder)
        return ge.CollectiveStrategy().estimator(self.model_fn, folder)

    def _copy(self, model_dir, folder):
        if exchange.current().rank == 0:
            shutil.copytree(model_dir, folder)
        exchange.current().barrier("copied")
