"""Programs that test_mirrored.py runs in a process of several devices."""

import numpy as np
import tensorflow as tf
from ranks.exchange.replica_cases import spread, strategy_of

import group_embedding as ge
from group_embedding.keras_compat import keras

ROWS, SAMPLES, STEPS = 30, 8, 4
DIMS = {"first": 2, "second": 3, "frozen": 2}


def batch_of(step):
    """Three ids of each table and sample, and labels."""
    rng = np.random.default_rng(step)
    return rng.integers(0, ROWS, [len(DIMS), SAMPLES, 3]), rng.normal(size=[SAMPLES, 1])


class Trainer:
    """Tables of several dims, of which one is frozen, read and written beside their group."""

    def __init__(self):
        rng = np.random.default_rng(1)
        self.tables = [
            tf.Variable(
                rng.normal(size=[ROWS, dim]).astype(np.float32),
                trainable=name != "frozen",
                aggregation=tf.VariableAggregation.MEAN,
                name=name,
            )
            for name, dim in DIMS.items()
        ]
        width = sum(DIMS.values())
        self.kernel = tf.Variable(np.linspace([-1], [1], width, dtype=np.float32))
        self.optimizer = ge.optimizers.wrap(keras.optimizers.Adagrad(0.1))
        self.optimizer.build(self.trained())

    def trained(self):
        return [*self.tables[:2], self.kernel]

    def look_up(self, ids):
        ids = [tf.RaggedTensor.from_tensor(of_table) for of_table in tf.unstack(ids)]
        return ge.group_embedding_lookup_sparse(self.tables, ids, "sum", concat=True)

    def step(self, ids, labels):
        """Reads, writes and looks tables up before and after an update. Returns what was read,
        and vectors."""
        before = self.tables[0].read_value()
        self.tables[0].assign(before * 0.5)
        with tf.GradientTape() as tape:
            error = self.look_up(ids) @ self.kernel - labels
            loss = tf.reduce_sum(error**2) / SAMPLES
        gradients = tape.gradient(loss, self.trained())
        self.optimizer.apply_gradients(zip(gradients, self.trained()))
        after = self.tables[0].read_value()
        self.tables[1].assign_add(tf.ones_like(self.tables[1]))
        vectors = self.look_up(ids)
        return before, after, vectors


def results(num_replicas):
    """The results of each step, and the tables at the end: of each a list of what each replica has.
    0 replicas: no strategy."""
    strategy = strategy_of(num_replicas) if num_replicas else tf.distribute.get_strategy()
    with strategy.scope():
        trainer = Trainer()
    parts = max(num_replicas, 1)

    @tf.function
    def step(ids, labels):
        return strategy.run(trainer.step, (ids, labels))

    def of_replicas(values):
        return [copy.numpy() for copy in strategy.experimental_local_results(values)]

    steps = []
    for i in range(STEPS):
        ids, labels = batch_of(i)
        given = [np.split(ids, parts, axis=1), np.split(labels.astype(np.float32), parts)]
        given = [[tf.constant(part) for part in of] for of in given]
        inputs = [spread(strategy, of) if num_replicas else of[0] for of in given]
        steps.append([of_replicas(values) for values in step(*inputs)])
    return steps, [of_replicas(table) for table in trainer.tables]


def trained_with_small_slots(slot_dtypes):
    """Trains two tables in two replicas. Returns the copies of each table, and of each of its slots
    the copies and the type."""
    strategy = strategy_of(2)
    with strategy.scope():
        tables = [
            tf.Variable(
                np.random.default_rng(dim).normal(size=[ROWS, dim]).astype(np.float32),
                aggregation=tf.VariableAggregation.MEAN,
            )
            for dim in (2, 3)
        ]
        for table, slot_dtype in zip(tables, slot_dtypes):
            ge.optimizers.set_slot_dtype(table, slot_dtype)
        optimizer = ge.optimizers.wrap(keras.optimizers.Adam(0.05))
        optimizer.build(tables)

    def train(ids):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum((of - 1) ** 2) for of in ge.lookup(tables, [ids, ids])])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    step = tf.function(lambda ids: strategy.run(train, (ids,)))
    for i in range(STEPS):
        step(spread(strategy, [tf.constant(part) for part in batch_of(i)[0][:2, :, 0]]))

    def copies_of(variable):
        if not isinstance(variable, tf.Variable | tf.distribute.DistributedValues):
            variable = variable.value  # of Keras 3
        copies = strategy.experimental_local_results(variable)
        return [tf.cast(copy, tf.float32).numpy() for copy in copies]

    slots = [slot for slot in optimizer.variables if len(slot.shape) == 2]
    return [copies_of(table) for table in tables], [
        (tf.as_dtype(slot.dtype).name, copies_of(slot)) for slot in slots
    ]
