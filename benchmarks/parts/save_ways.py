"""Models with keyed tables that train step by step, and the methods by which each is saved.

A save method is called between two steps with the prefix of a checkpoint. It returns a function
that waits for the end of the save, which another thread may call while the model trains; or None,
after a save that is complete.
"""

import threading
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from parts.table_cpu import keys_of

import group_embedding as ge

v1 = tf.compat.v1
KERAS_3 = getattr(tf.keras, "__version__", "2").startswith("3")
FIRST_STEP, STEPS_TO_LIVE = 1 << 20, 1 << 19
IDS, UNITS = 8, 256  # of each sample; of the dense layer
CHUNK = 1 << 17  # keys inserted, or counted, at a time
IN_BACKGROUND = tf.train.CheckpointOptions(enable_async=True)


class Size(NamedTuple):
    num_rows: int  # of all tables together
    num_tables: int
    dim: int
    batch: int  # ids of each table in a step
    option: Any  # EmbeddingVariableOption


class Tables:
    """Base of the models: keyed tables of a Size, and keys for them."""

    save_methods = {}  # {name: name of the method}

    def make_tables(self, size, name):
        self.size = size
        self.rng = np.random.default_rng(0)
        self.embeddings = [
            ge.get_embedding_variable(f"{name}_{t}", size.dim, ev_option=size.option)
            for t in range(size.num_tables)
        ]

    @property
    def rows_of_each(self):
        return self.size.num_rows // self.size.num_tables

    def fill(self, tell):
        """Every row in place and trained in the first step; the slots are made by a step."""
        self.step()
        values = self.rng.standard_normal((CHUNK, self.size.dim), "float32")
        for first in range(0, self.rows_of_each, CHUNK):
            numbers = np.arange(first, min(first + CHUNK, self.rows_of_each))
            self.insert(numbers, values[: len(numbers)], FIRST_STEP)
            tell(first / self.rows_of_each)

    def count_candidates(self):
        """Has a filter count a tenth as many keys as have rows. Returns how many."""
        count = self.rows_of_each // 10 // CHUNK * CHUNK or CHUNK
        for first in range(0, count, CHUNK):
            numbers = np.arange(first, first + CHUNK) + 2 * self.rows_of_each
            self.step(keys_of(numbers).reshape(-1, IDS))
        return count * self.size.num_tables

    def insert_stale(self, turn):
        """Gives one key in a hundred a row that an eviction removes."""
        count = max(self.rows_of_each // 100, 1)
        numbers = (np.arange(count) + turn * count) % self.rows_of_each
        self.insert(numbers, np.zeros([count, self.size.dim], "float32"), 0)

    def batch(self):
        """Keys of a step, [samples, IDS]: uniform, which changes the most rows, and one in fifty
        has no row yet."""
        numbers = self.rng.integers(0, int(1.02 * self.rows_of_each), [self.size.batch // IDS, IDS])
        return keys_of(numbers)

    def forward(self, keys, dense):
        """Of `dense`, two matrices."""
        parts = ge.group_embedding_lookup(self.embeddings, [keys] * len(self.embeddings))
        rows = tf.reshape(tf.add_n(parts), [-1, IDS * self.size.dim])
        return tf.matmul(tf.nn.relu(tf.matmul(rows, dense[0])), dense[1])

    def dense_shapes(self):
        return [IDS * self.size.dim, UNITS], [UNITS, 1]


class SessionModel(Tables):
    """A model in a graph of TensorFlow 1. Saves begin in the session of `saver` or of `hook`, which
    are views of one session."""

    save_methods = {
        "Saver.save": "save",
        "BackgroundSave of a Saver": "save_in_background",
        "CheckpointSaverHook": "step_with_hook",
        "Saver.save in a thread": "save_in_thread",
    }

    def __init__(self, size, folder):
        with tf.Graph().as_default() as self.graph:
            global_step = v1.train.get_or_create_global_step()
            self.make_tables(size, "session")
            dense = [v1.get_variable(f"dense{n}", s) for n, s in enumerate(self.dense_shapes())]
            self.keys = v1.placeholder(tf.int64, [None, IDS])
            loss = tf.reduce_mean(self.forward(self.keys, dense) ** 2)
            optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.01))
            self.train = optimizer.minimize(loss, global_step)
            self.inserted = (
                v1.placeholder(tf.int64, [None]),
                v1.placeholder(tf.float32, [None, size.dim]),
                v1.placeholder(tf.int64, [None]),
            )
            self.insertion = tf.group([table.insert(*self.inserted) for table in self.embeddings])
            start = global_step.assign(FIRST_STEP)
            self.saver = v1.train.Saver(max_to_keep=1)
            scaffold = v1.train.Scaffold(saver=self.saver)
            self.hook = ge.checkpoint.CheckpointSaverHook(folder, save_steps=1, scaffold=scaffold)
            self.hooked = v1.train.SingularMonitoredSession([self.hook], scaffold)
            self.session = self.hooked.raw_session()
            self.session.run(start)

    def step(self, keys=None):
        self.session.run(self.train, {self.keys: self.batch() if keys is None else keys})

    def insert(self, numbers, values, version):
        given = (keys_of(numbers), values, np.full(len(numbers), version))
        self.session.run(self.insertion, dict(zip(self.inserted, given)))

    def save(self, prefix):
        with self.graph.as_default():
            self.saver.save(self.session, prefix)

    def save_in_background(self, prefix):
        return ge.checkpoint.BackgroundSave(self.saver, self.session, prefix).result

    def step_with_hook(self, prefix):
        del prefix  # the hook has its own folder
        self.hooked.run(self.train, {self.keys: self.batch()})
        return self.hook._wait

    def save_in_thread(self, prefix):
        thread = threading.Thread(target=self.save, args=[prefix])
        thread.start()
        return thread.join

    def close(self):
        self.session.close()


class ObjectModel(Tables, tf.Module if KERAS_3 else tf.keras.Model):
    """A model in eager code; a Keras model where Keras saves weights in TensorFlow's format."""

    save_methods = {
        "Checkpoint.write": "save",
        "BackgroundSave of a Checkpoint": "save_in_background",
    }
    if not KERAS_3:  # which copies its variables once, and saves no weights in this format
        save_methods["Checkpoint.write, enable_async"] = "save_async"
        save_methods["save_weights"] = "save_keras"
        save_methods["save_weights, enable_async"] = "save_keras_async"

    def __init__(self, size, folder):
        del folder
        super().__init__(name="objects")
        self.make_tables(size, "objects")
        for table in self.embeddings:
            table.step = FIRST_STEP
        self.dense = [tf.Variable(tf.random.normal(s, stddev=0.05)) for s in self.dense_shapes()]
        self.optimizer_of_all = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.01))
        self.optimizer_of_all.build([*self.embeddings, *self.dense])
        self.checkpoints = {  # what saves with enable_async keeps its copies
            name: tf.train.Checkpoint(model=self) for name in ("save", "ours", "async")
        }

    def call(self, keys):
        return self.forward(keys, self.dense)

    @tf.function
    def train_on(self, keys):
        variables = [*self.embeddings, *self.dense]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.forward(keys, self.dense) ** 2)
        self.optimizer_of_all.apply_gradients(zip(tape.gradient(loss, variables), variables))

    def step(self, keys=None):
        self.train_on(tf.constant(self.batch() if keys is None else keys))
        tf.test.experimental.sync_devices()

    def insert(self, numbers, values, version):
        for table in self.embeddings:
            table.insert(keys_of(numbers), values, versions=np.full(len(numbers), version))

    def save(self, prefix):
        self.checkpoints["save"].write(prefix)

    def save_in_background(self, prefix):
        return ge.checkpoint.BackgroundSave(self.checkpoints["ours"], prefix).result

    def save_async(self, prefix):
        self.checkpoints["async"].write(prefix, IN_BACKGROUND)
        return self.checkpoints["async"].sync

    def save_keras(self, prefix):
        self.save_weights(prefix, save_format="tf")

    def save_keras_async(self, prefix):
        self.save_weights(prefix, save_format="tf", options=IN_BACKGROUND)
        return self._checkpoint.sync

    def close(self):
        pass
