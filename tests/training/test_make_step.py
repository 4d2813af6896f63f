"""Steps that `make_step` compiles, beside the same steps in a plain `tf.function`."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.training.compiled_step import CompiledStep

SAMPLES, STEPS = 12, 100


class Trainer:
    """Two tables by row, one of keys, and two dense layers, all from seeds."""

    def __init__(self, optimizer, keys="keys"):
        rng = np.random.default_rng(5)
        self.rows = [
            tf.Variable(rng.normal(size=shape) / 4, dtype=tf.float32) for shape in [(30, 4), (9, 3)]
        ]
        self.keys = ge.get_embedding_variable(
            keys, 2, initializer=keras.initializers.RandomUniform(seed=2)
        )
        self.kernel = tf.Variable(rng.normal(size=(9, 6)) / 3, dtype=tf.float32)
        self.head = tf.Variable(rng.normal(size=(6, 1)) / 3, dtype=tf.float32)
        self.variables = [*self.rows, self.keys, self.kernel, self.head]
        self.optimizer = optimizer

    def loss(self, clicks, item, key, labels):
        tables = [*self.rows, self.keys]
        ids = [clicks, tf.RaggedTensor.from_tensor(item), tf.RaggedTensor.from_tensor(key)]
        vectors = ge.group_embedding_lookup_sparse(tables, ids, ["mean", "sum", "sqrtn"])
        hidden = tf.nn.relu(tf.concat(vectors, axis=-1) @ self.kernel)
        return tf.reduce_mean((hidden @ self.head - labels) ** 2)

    def step(self, *batch):
        with tf.GradientTape() as tape:
            loss = self.loss(*batch)
        gradients = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables))
        return loss

    def values(self):
        keys, rows = self.keys.export()[:2]
        order = np.argsort(keys)
        dense = [variable.numpy() for variable in self.variables if variable is not self.keys]
        return [*dense, keys.numpy()[order], rows.numpy()[order]]


def batches(count):
    rng = np.random.default_rng(11)
    for _ in range(count):
        lengths = rng.integers(0, 4, SAMPLES)
        clicks = tf.RaggedTensor.from_row_lengths(rng.integers(0, 30, lengths.sum()), lengths)
        item, key = rng.integers(0, 9, (SAMPLES, 1)), rng.integers(0, 50, (SAMPLES, 2))
        labels = item.astype("float32") / 9  # which can be learned
        yield clicks, tf.constant(item), tf.constant(key), tf.constant(labels)


def train(make, optimizer, count=STEPS):
    trainer = Trainer(optimizer())
    step = make(trainer.step)
    losses = [step(*batch).numpy() for batch in batches(count)]
    return losses, trainer.values()


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
    ),
    "clipvalue": lambda: keras.optimizers.RMSprop(0.01, clipvalue=0.01),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
    "averages": lambda: keras.optimizers.Adagrad(0.1, use_ema=True, ema_momentum=0.9),
}


@pytest.mark.parametrize("name", by_day(OPTIMIZERS, ["global_clipnorm"]))
def test_a_compiled_step_trains_as_a_plain_one(name):
    # Given an optimizer, and a hundred batches with ids of other lengths each
    def optimizer():
        return ge.optimizers.wrap(OPTIMIZERS[name]())

    # When they train a model in a plain function, and in a compiled step
    plain, compiled = (train(make, optimizer) for make in (tf.function, ge.training.make_step))

    # Then losses, dense variables and rows are the same, but for the order of sums
    np.testing.assert_allclose(compiled[0], plain[0], rtol=0, atol=1e-6)
    for got, expected in zip(compiled[1], plain[1], strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
    assert np.mean(plain[0][-10:]) < 0.8 * np.mean(plain[0][:10])


def graph_of(step, *batch):
    return tf.function(step, autograph=False).get_concrete_function(*batch).graph


def types_in(graph):
    return [op.type for op in graph.get_operations()]


def test_the_dense_part_is_one_program():
    # Given a step
    trainer = Trainer(ge.optimizers.wrap(keras.optimizers.Adagrad(0.1)))
    batch = next(batches(1))
    trainer.step(*batch)

    # When it is compiled
    step = CompiledStep(trainer.step)
    graph = graph_of(step, *batch)

    # Then the graph has the lookup, one program and the update, and no dense op beside them
    types = types_in(graph)
    calls = [op for op in graph.get_operations() if "_XlaMustCompile" in op.node_def.attr]
    assert step.num_programs == 1
    assert [op.get_attr("_XlaMustCompile") for op in calls] == [True]
    # Variables are on a GPU if there is one, the keyed table is not: an op for each device
    num_devices = 2 if tf.config.list_physical_devices("GPU") else 1
    for op in ("GroupEmbedding>GroupLookup", "GroupEmbedding>GroupUpdate"):
        assert types.count(op) == num_devices
    assert not {"MatMul", "Relu", "AssignSubVariableOp"} & set(types)


@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
def test_no_program_depends_on_how_many_rows_are_trained(clip):
    # Given a step whose gradients are limited by norms, also those of tables
    trainer = Trainer(ge.optimizers.wrap(keras.optimizers.SGD(0.1, **{clip: 0.1})), f"keys_{clip}")
    batch = next(batches(1))
    trainer.step(*batch)

    # When it is compiled
    graph = graph_of(CompiledStep(trainer.step), *batch)

    # Then XLA, which compiles anew for each shape, gets tensors of the same shapes in each step
    calls = [op for op in graph.get_operations() if "_XlaMustCompile" in op.node_def.attr]
    shapes = [tensor.shape for op in calls for tensor in op.inputs]
    assert len(calls) > 1 and shapes
    assert all(shape.is_fully_defined() for shape in shapes), shapes


def test_a_compiled_step_passes_all_tables_of_an_op_as_one_input():
    # Given a step of three tables by row, whose optimizer has a learning rate of its own each step
    tables = [tf.Variable(tf.ones([5, 2]) * (1 + t)) for t in range(3)]
    kernel = tf.Variable(tf.ones([6, 1]))
    rate = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    optimizer = ge.optimizers.wrap(keras.optimizers.Adagrad(rate))

    def step(ids):
        with tf.GradientTape() as tape:
            vectors = ge.group_embedding_lookup(tables, [ids] * 3)
            loss = tf.reduce_sum(tf.concat(vectors, -1) @ kernel)
        gradients = tape.gradient(loss, [*tables, kernel])
        optimizer.apply_gradients(zip(gradients, [*tables, kernel]))
        return loss

    step(tf.constant([0]))

    # When it is compiled
    graph = graph_of(CompiledStep(step), tf.constant([1, 1]))

    # Then the lookup and the update have one input for all tables and one for all slots, and the
    # numbers that steer the update come from the program
    ops = {op.type.partition(">")[2]: op for op in graph.get_operations()}
    assert len(ops["GroupLookup"].get_attr("table_types")) == 1
    assert (
        ops["GroupUpdate"].get_attr("num_tables") == ops["GroupUpdate"].get_attr("num_slots") == 1
    )
    hyper = ops["GroupUpdate"].inputs[5]
    assert hyper.op.type == "StatefulPartitionedCall"
    assert not {"AddV2", "Pack", "TensorScatterUpdate"} & set(types_in(graph))


def test_what_lookups_depend_on_runs_before_the_program():
    # Given a step that finds its ids in a vocabulary of strings, and that writes a summary
    table, kernel = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([2, 1]))
    vocabulary = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b", "c"], tf.range(3, dtype=tf.int64)), 1
    )
    optimizer = ge.optimizers.wrap(keras.optimizers.SGD(0.5))
    seen = []

    @ge.training.make_step
    def step(words, labels):
        ids = vocabulary.lookup(tf.strings.lower(words))
        with tf.GradientTape() as tape:
            (vectors,) = ge.group_embedding_lookup([table], [ids])
            loss = tf.reduce_mean((vectors @ kernel - labels) ** 2)
        tf.py_function(lambda loss: seen.append(float(loss)), [loss], [])
        pairs = zip(tape.gradient(loss, [table, kernel]), [table, kernel])
        optimizer.apply_gradients(pairs)
        return {"loss": loss, "ids": ids}

    # When it runs
    result = step(tf.constant(["A", "c", "z"]), tf.zeros([3, 1]))

    # Then the rows of the words were trained
    assert result["ids"].numpy().tolist() == [0, 2, 3]
    assert seen == [float(result["loss"])] == [4.0]
    assert table.numpy()[:, 0].tolist() == pytest.approx([1 / 3, 1, 1 / 3, 1 / 3])


def test_branches_and_loops_of_the_dense_part_are_compiled():
    # Given a step whose dense part has a branch and a loop
    def step_of(table, kernel, optimizer):
        def step(ids, limit):
            with tf.GradientTape() as tape:
                (vectors,) = ge.group_embedding_lookup([table], [ids])
                hidden = tf.reduce_sum(vectors @ kernel)
                hidden = tf.cond(hidden > limit, lambda: hidden / 2, lambda: hidden * 3)
                (hidden,) = tf.while_loop(
                    lambda hidden: True,
                    lambda hidden: (tf.tanh(hidden),),
                    (hidden,),
                    maximum_iterations=3,
                )
                loss = (hidden - 0.5) ** 2
            gradients = tape.gradient(loss, [table, kernel])
            optimizer.apply_gradients(zip(gradients, [table, kernel]))
            return loss

        return step

    # When it is compiled
    losses = []
    for make in (tf.function, ge.training.make_step):
        table, kernel = tf.Variable(0.1 * tf.ones([6, 3])), tf.Variable(tf.ones([3, 1]))
        optimizer = ge.optimizers.wrap(keras.optimizers.SGD(0.5))
        step = make(step_of(table, kernel, optimizer))
        ids = tf.constant([1, 2], tf.int64)
        losses.append([step(ids, tf.constant(limit)).numpy() for limit in (0.1, 9.0, 0.1, 9.0)])

    # Then both branches train as without
    np.testing.assert_allclose(losses[1], losses[0], atol=1e-6)
    assert len(set(losses[0])) == 4


@pytest.mark.parametrize("name", ["Adagrad", "Nadam"])
def test_an_optimizer_that_is_not_wrapped(name):
    # Given an optimizer of Keras as it is, one of which has a branch of its own
    def optimizer():
        return getattr(keras.optimizers, name)(0.1)

    # When it trains two tables by row number in a plain function and in a compiled step
    values = []
    for make in (tf.function, ge.training.make_step):
        trainer = Trainer(optimizer())
        trainer.variables = [*trainer.rows, trainer.kernel, trainer.head]
        step = make(trainer.step)
        losses = [step(*batch).numpy() for batch in batches(5)]
        values.append((losses, [variable.numpy() for variable in trainer.variables]))

    # Then the results are the same
    np.testing.assert_allclose(values[1][0], values[0][0], atol=1e-6)
    for got, expected in zip(values[1][1], values[0][1]):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_what_xla_cannot_compile_is_named():
    table, kernel = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([2, 1]))
    optimizer = ge.optimizers.wrap(keras.optimizers.SGD(0.5))

    @ge.training.make_step
    def rounded_step(ids):
        with tf.GradientTape() as tape:
            (vectors,) = ge.group_embedding_lookup([table], [ids])
            with tf.name_scope("rounding"):
                vectors = tf.numpy_function(np.round, [2 * vectors], tf.float32)
            loss = tf.reduce_sum(tf.reshape(vectors, [-1, 2]) @ kernel)
        optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
        return loss

    named = "step 'rounded_step': expected ops that XLA compiles.*PyFunc.*in 'rounding'.*map"
    with pytest.raises(ValueError, match=named):
        rounded_step(tf.constant([1, 2], tf.int64))


def test_a_lookup_in_a_branch_is_refused():
    table = tf.Variable(tf.ones([4, 2]))

    @ge.training.make_step
    def step(ids, looks_up):
        return tf.cond(
            looks_up,
            lambda: tf.reduce_sum(ge.group_embedding_lookup([table], [ids])[0]),
            lambda: tf.constant(0.0),
        )

    with pytest.raises(ValueError, match="the lookup of 'ids.0.': expected it in the body"):
        step(tf.constant([1], tf.int64), tf.constant(True))


def test_a_strategy_around_a_step_is_refused():
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    refused = pytest.raises(ValueError, match="expected no tf.distribute strategy around")
    with strategy.scope(), refused:
        ge.training.make_step(lambda x: x)(tf.constant(1.0))


@pytest.mark.parametrize("starts_finite", [True, False])
def test_a_loss_scale_skips_a_step_that_overflows(starts_finite):
    # Given models that scale the loss of a float16 model. One overflows in float32 as well: XLA may
    # leave out a conversion to float16 and back
    kind = keras.mixed_precision.LossScaleOptimizer
    scale, factor = (2.0**4, 1.0) if starts_finite else (2.0**127, 1e6)

    def optimizer():
        inner = ge.optimizers.wrap(keras.optimizers.SGD(0.1))
        return kind(inner, initial_scale=scale)

    def scaled_step(trainer):
        def step(*batch):
            with tf.GradientTape() as tape:
                loss = trainer.loss(*batch)
                half = tf.cast(factor * loss, tf.float16)
                scaled = (
                    trainer.optimizer.scale_loss(half)
                    if IS_KERAS_3
                    else trainer.optimizer.get_scaled_loss(half)
                )
            gradients = tape.gradient(scaled, trainer.variables)
            if not IS_KERAS_3:
                gradients = trainer.optimizer.get_unscaled_gradients(gradients)
            trainer.optimizer.apply_gradients(zip(gradients, trainer.variables))
            return loss

        return step

    # When one is trained in a plain function and one in a compiled step
    results = []
    for make in (tf.function, ge.training.make_step):
        trainer = Trainer(optimizer())
        before = trainer.head.numpy()
        step = make(scaled_step(trainer))
        losses = [step(*batch).numpy() for batch in batches(4)]
        results.append((losses, trainer.values(), np.any(trainer.head.numpy() != before)))

    # Then both trained, or both left all as it was
    assert results[0][2] == results[1][2] == starts_finite
    np.testing.assert_allclose(results[1][0], results[0][0], atol=1e-5)
    for got, expected in zip(results[1][1], results[0][1], strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_two_lookups_of_one_table_and_a_weighted_one():
    # Given a step that looks one table up twice, once with weights from the batch
    def step_of(table, kernel, optimizer):
        def step(ids, weights):
            rows = tf.RaggedTensor.from_tensor(ids)
            with tf.GradientTape() as tape:
                (first,) = ge.group_embedding_lookup_sparse([table], [rows], "sum")
                (second,) = ge.group_embedding_lookup_sparse(
                    [table], [rows], "mean", sp_weights=[rows.with_values(weights)]
                )
                loss = tf.reduce_mean(((first * second) @ kernel) ** 2)
            gradients = tape.gradient(loss, [table, kernel])
            optimizer.apply_gradients(zip(gradients, [table, kernel]))
            return loss

        return step

    # When it is compiled
    values = []
    for make in (tf.function, ge.training.make_step):
        table, kernel = tf.Variable(tf.ones([6, 3])), tf.Variable(tf.ones([3, 1]))
        optimizer = ge.optimizers.wrap(keras.optimizers.Adagrad(0.1))
        step = make(step_of(table, kernel, optimizer))
        for shift in range(3):
            step(tf.constant([[0, 1], [2, 2 + shift]]), tf.constant([1.0, 2.0, 0.5, 3.0]))
        values.append((table.numpy(), kernel.numpy()))

    # Then the table has the sum of both gradients
    np.testing.assert_allclose(values[1][0], values[0][0], rtol=1e-6)
    np.testing.assert_allclose(values[1][1], values[0][1], rtol=1e-6)


def test_weights_that_are_trained():
    # Given a step whose lookup has weights that depend on a variable
    def step_of(table, scale, optimizer):
        def step(ids):
            rows = tf.RaggedTensor.from_tensor(ids)
            with tf.GradientTape() as tape:
                weights = rows.with_values(tf.nn.sigmoid(tf.range(4.0) * scale))
                (vectors,) = ge.group_embedding_lookup_sparse(
                    [table], [rows], "mean", sp_weights=[weights]
                )
                loss = tf.reduce_mean((vectors * tf.range(3.0) - 1) ** 2)
            gradients = tape.gradient(loss, [table, scale])
            optimizer.apply_gradients(zip(gradients, [table, scale]))
            return loss

        return step

    # When it is compiled
    values = []
    for make in (tf.function, ge.training.make_step):
        start = np.random.default_rng(2).normal(size=(6, 3)).astype("float32")
        table, scale = tf.Variable(start), tf.Variable(0.5)
        optimizer = ge.optimizers.wrap(keras.optimizers.Adagrad(0.1))
        step = make(step_of(table, scale, optimizer))
        for shift in range(3):
            step(tf.constant([[0, 1], [2, 2 + shift]]))
        values.append((table.numpy(), scale.numpy()))

    # Then the variable was trained as without
    np.testing.assert_allclose(values[1][0], values[0][0], rtol=1e-6)
    np.testing.assert_allclose(values[1][1], values[0][1], rtol=1e-6)
    assert abs(values[0][1] - 0.5) > 1e-3
