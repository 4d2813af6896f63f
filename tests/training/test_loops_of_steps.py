"""Compiled steps in a loop of a function, beside one call for each step."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras

SAMPLES, CALLS, STEPS_A_CALL = 8, 3, 4


class Trainer:
    """Two tables of one size and a keyed table, looked up by packed ids, and a dense layer."""

    def __init__(self, name):
        rng = np.random.default_rng(3)
        normal = [rng.normal(size=shape).astype("float32") for shape in [(20, 4)] * 2 + [(10, 1)]]
        self.first, self.second, self.kernel = map(tf.Variable, normal)
        self.keys = ge.get_embedding_variable(
            f"loops_{name}", 2, initializer=keras.initializers.RandomUniform(seed=2)
        )
        self.tables = [self.first, self.second, self.keys]
        self.optimizer = ge.optimizers.wrap(keras.optimizers.Adagrad(0.1))
        self.step = ge.training.make_step(self._step)

    def _step(self, ids, labels):
        variables = [*self.tables, self.kernel]
        with tf.GradientTape() as tape:
            vectors = ge.group_embedding_lookup_sparse(self.tables, ids, "mean", concat=True)
            loss = tf.reduce_mean((vectors @ self.kernel - labels) ** 2)
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
        return loss

    def dataset(self, samples=SAMPLES):
        rng = np.random.default_rng(4)
        count = CALLS * STEPS_A_CALL * SAMPLES
        ids, labels = rng.integers(0, 20, [count, 3]), rng.normal(size=[count, 1])

        def pack(ids, labels):
            columns = [tf.RaggedTensor.from_tensor(ids[:, c : c + 1]) for c in range(3)]
            return ge.route_ids(self.tables, columns, "mean"), labels

        data = tf.data.Dataset.from_tensor_slices((ids, labels.astype("float32")))
        return data.batch(samples, drop_remainder=True).map(pack)

    def three_and_a_smaller(self):
        return [*self.dataset().take(3), *self.dataset(samples=5).take(1)]

    def values(self):
        keys, rows = self.keys.export()[:2]
        order = np.argsort(keys)
        dense = [v.numpy() for v in (self.first, self.second, self.kernel)]
        return [*dense, keys.numpy()[order], rows.numpy()[order]]


@pytest.mark.parametrize("device", ["CPU", pytest.param("GPU", marks=pytest.mark.gpu)])
def test_a_loop_of_steps_trains_as_single_calls(device):
    with tf.device(device):
        # Given one trainer that calls its compiled step for each batch, and another
        single, looped = Trainer(f"single_{device}"), Trainer(f"looped_{device}")
        losses = [single.step(*batch).numpy() for batch in single.dataset()]

        # When that one has a function that takes several steps
        @tf.function
        def steps(iterator):
            losses = tf.TensorArray(tf.float32, STEPS_A_CALL)
            for i in tf.range(STEPS_A_CALL):
                losses = losses.write(i, looped.step(*next(iterator)))
            return losses.stack()

        iterator = iter(looped.dataset())
        found = np.concatenate([steps(iterator).numpy() for _ in range(CALLS)])

        # Then losses and rows are the same to the bit, in every step
        np.testing.assert_array_equal(found, losses)
        for got, expected in zip(looped.values(), single.values(), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_steps_of_one_function_are_calls_of_one_program():
    # Given one trainer whose function takes the steps of three batches, and a smaller one
    rolled_out, single = Trainer("rolled_out"), Trainer("single")

    @tf.function
    def steps(batches):
        return [rolled_out.step(*batch) for batch in batches]

    # When both train
    batches = rolled_out.three_and_a_smaller()
    found = [loss.numpy() for loss in steps(batches)]
    expected = [single.step(*batch).numpy() for batch in single.three_and_a_smaller()]

    # Then they end alike, and the function has an XLA program for each size of batch
    np.testing.assert_array_equal(found, expected)
    for got, value in zip(rolled_out.values(), single.values(), strict=True):
        np.testing.assert_array_equal(got, value)
    graph = steps.get_concrete_function(batches).graph
    programs = [op.get_attr("f").name for op in graph.get_operations() if _is_compiled(op)]
    assert len(programs) == 4
    assert len(set(programs)) == 2


def test_a_step_sees_what_it_closes_over_as_of_each_call():
    # Given a step that reads a tensor of the function around it
    table, rate = tf.Variable(tf.zeros([4, 2])), None
    optimizer = ge.optimizers.wrap(keras.optimizers.SGD(1.0))

    @ge.training.make_step
    def step(id):
        with tf.GradientTape() as tape:
            (rows,) = ge.group_embedding_lookup([table], [id])
            loss = rate * tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    # When that tensor differs from call to call
    @tf.function
    def steps(rates):
        nonlocal rate
        for i in range(2):
            rate = rates[i]
            step(tf.constant([3], tf.int64))

    steps(tf.constant([1.0, 10.0]))

    # Then each step has its own
    np.testing.assert_array_equal(table[3], [-11, -11])


def _is_compiled(op):
    return "PartitionedCall" in op.type and op.get_attr("_XlaMustCompile")


def test_reads_around_a_step_are_in_the_order_of_the_function():
    # Given a compiled step that takes 1 from each row of two variables and a keyed table
    keys = ge.get_embedding_variable("reads_around", 4, initializer=keras.initializers.Zeros())
    tables = [tf.Variable(tf.zeros([20000, 4])), tf.Variable(tf.zeros([20000, 4])), keys]
    optimizer = ge.optimizers.wrap(keras.optimizers.SGD(1.0))
    ids = [tf.RaggedTensor.from_tensor(tf.range(20000, dtype=tf.int64)[:, None])] * 3

    @ge.training.make_step
    def step():
        with tf.GradientTape() as tape:
            rows = ge.group_embedding_lookup_sparse(tables, ids, "sum", concat=True)
        gradients = tape.gradient(rows, tables)
        optimizer.apply_gradients(zip(gradients, tables))
        return tf.reduce_mean(rows)

    def read():
        return tf.concat([table[-1] for table in tables[:2]] + [keys.sparse_read([19999])[0]], 0)

    # When a function reads them before, between and after two calls of it, called by itself before
    assert step() == 0
    assert step.get_concrete_function().structured_outputs.shape == []

    @tf.function
    def read_around():
        reads = [read()]
        for _ in range(2):
            step()
            reads.append(read())
        return tf.stack(reads)

    # Then each read sees the steps before it
    expected = -np.repeat([[1.0], [2.0], [3.0]], 12, 1)
    np.testing.assert_array_equal(read_around(), expected)
    np.testing.assert_array_equal(read_around(), expected - 2)


def test_a_step_runs_op_by_op_where_functions_do(monkeypatch):
    # Given a trainer, and another one that looks at each loss as it is computed
    compiled, looked_at = Trainer("compiled"), Trainer("looked_at")
    losses = [compiled.step(*batch).numpy() for batch in compiled.dataset()]
    seen = []
    reduce_mean = tf.reduce_mean
    monkeypatch.setattr(tf, "reduce_mean", lambda x: seen.append(reduce_mean(x)) or seen[-1])

    # When functions run eagerly
    tf.config.run_functions_eagerly(True)
    try:
        found = [looked_at.step(*batch).numpy() for batch in looked_at.dataset()]
    finally:
        tf.config.run_functions_eagerly(False)

    # Then it sees the losses of the compiled steps
    assert [float(loss) for loss in seen] == found
    np.testing.assert_allclose(found, losses, rtol=1e-5)


def test_a_step_is_a_method():
    # Given a class with a compiled step
    class Counter:
        def __init__(self, start):
            self.count = tf.Variable(start)
            self.table = tf.Variable(tf.ones([3, 2]))

        @ge.training.make_step
        def step(self, id, by=1.0):
            (rows,) = ge.group_embedding_lookup_sparse(
                [self.table], [tf.RaggedTensor.from_tensor(id)], "sum"
            )
            return self.count.assign_add(by * tf.reduce_sum(rows))

    # When two objects take steps, Then each has its own
    id = tf.constant([[1]], tf.int64)
    first, second = Counter(0.0), Counter(10.0)
    assert [first.step(id), second.step(id), first.step(id, by=2.0)] == [2, 12, 6]
