"""Slots of tables by row number in a type of their own: `set_slot_dtype`, and `TableConfig`."""

import numpy as np
import pytest
import tensorflow as tf
from support.oracles.rounding import random_bits, round_to_bfloat16

import group_embedding as ge
from group_embedding.keras_compat import keras
from group_embedding.optimizers.bases import legacy_optimizers

ROWS, DIM, SEED = 60, 11, 5
v1, KERAS = tf.compat.v1, tf.keras.optimizers
wrap = ge.optimizers.wrap
OPTIMIZERS = {  # {name: (what makes it, names of its slots with the rule's numbers of them)}
    "adam": (lambda: wrap(KERAS.Adam(0.01)), {"_momentums": 0, "_velocities": 1}),
    "adamw": (lambda: wrap(KERAS.AdamW(0.01, 0.1)), {"_momentums": 0, "_velocities": 1}),
    "lazy_adam": (lambda: ge.optimizers.LazyAdam(0.01), {"_momentums": 0, "_velocities": 1}),
    "adagrad": (lambda: wrap(KERAS.Adagrad(0.1, 0.125)), {"_accumulators": 0}),
    "rowwise_adam": (
        lambda: ge.optimizers.RowwiseAdam(0.01), {"_momentums": 0, "_velocities": 1}
    ),
    "rowwise_adagrad": (
        lambda: ge.optimizers.RowwiseAdagrad(0.1, 0.125), {"_accumulators": 0}
    ),
    "v1_adam": (lambda: wrap(v1.train.AdamOptimizer(0.01)), {"m": 0, "v": 1}),
    "v1_adagrad": (lambda: wrap(v1.train.AdagradOptimizer(0.1)), {"accumulator": 0}),
}  # fmt: skip
if legacy_optimizers() is not None:
    OPTIMIZERS["legacy_adam"] = (
        lambda: wrap(legacy_optimizers().Adam(0.01)), {"m": 0, "v": 1}
    )  # fmt: skip
FAST = ("adam", "rowwise_adagrad", "v1_adam")  # the others in the slow tier
NAMES = [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in OPTIMIZERS]
KERAS_NAMES = ["adam", "adagrad", "rowwise_adam", "rowwise_adagrad"]
ALL, SMALL = ("bfloat16", "float32", None, "bfloat16"), ("bfloat16",) * 4


def batches(steps, seed=SEED):
    random = np.random.default_rng(seed)
    return [random.integers(0, ROWS, (3, 40)) for _ in range(steps)]


class Trained(tf.Module):
    """Three tables, whose slots may have three types, and a dense weight."""

    def __init__(self, optimizer, slot_dtypes, dtype=tf.float32):
        super().__init__()
        start = np.random.default_rng(SEED).normal(size=[3, ROWS, DIM])
        self.tables = [
            tf.Variable(tf.cast(rows, dtype), name=f"table{i}") for i, rows in enumerate(start)
        ]
        self.weight = tf.Variable(tf.ones([DIM, 1]), name="weight")
        for table, slot_dtype in zip(self.tables, slot_dtypes):
            if slot_dtype is not None:
                ge.optimizers.set_slot_dtype(table, slot_dtype)
        self.make, self.names = OPTIMIZERS[optimizer]
        self.optimizer = self.make()

    def step(self, ids):
        with tf.GradientTape() as tape:
            rows = ge.lookup(self.tables, list(tf.unstack(ids)))
            hidden = tf.add_n([tf.cast(of, tf.float32) for of in rows])
            loss = tf.reduce_mean((tf.matmul(hidden, self.weight) - 1.0) ** 2)
        variables = [*self.tables, self.weight]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    def train(self, steps):
        if isinstance(self.optimizer, v1.train.Optimizer):  # eagerly: it makes variables as it runs
            step = self.step
        else:
            step = tf.function(self.step)
        for ids in steps:
            step(tf.constant(ids))
        return self

    def slot(self, name, table):
        if hasattr(self.optimizer, "get_slot_names"):
            return self.optimizer.get_slot(self.tables[table], name)
        return self.optimizer._ge_slot(name, self.tables[table])

    def values(self):
        slots = [self.slot(name, i) for name in self.names for i in range(len(self.tables))]
        return [np.asarray(tf.cast(value, tf.float32)) for value in (*self.tables, *slots)]

    def write(self, path):
        return tf.train.Checkpoint(tables=self.tables, weight=self.weight,
                                   optimizer=self.optimizer).write(str(path))  # fmt: skip

    def read(self, path):
        tf.train.Checkpoint(tables=self.tables, weight=self.weight,
                            optimizer=self.optimizer).read(path).expect_partial()  # fmt: skip
        return self


def assert_same(one, other):
    for a, b in zip(one.values(), other.values()):
        np.testing.assert_array_equal(a, b)


def rounded(values):
    return np.asarray(tf.cast(tf.cast(values, tf.bfloat16), tf.float32))


def key_of(step, seed=0):
    """The key of the random numbers of a step of Keras's optimizers."""
    drawn = tf.random.stateless_uniform([], [seed, step], None, None, tf.int32)
    return np.asarray(drawn).view(np.uint32)


@pytest.mark.parametrize("name", NAMES)
def test_slots_have_the_type_that_was_set(name):
    # Given tables with slots of three kinds, and a dense weight, when a step trains all
    model = Trained(name, ALL).train(batches(1))
    # Then slots are of that type or of the rows', and the first half the bytes
    expected = [tf.bfloat16, tf.float32, tf.float32]
    for slot in model.names:
        made = [model.slot(slot, i) for i in range(3)]
        assert [tf.as_dtype(one.dtype).base_dtype for one in made] == expected
        assert len({tuple(one.shape) for one in made}) == 1
    assert model.weight.dtype == tf.float32


@pytest.mark.parametrize("device", [
    "CPU:0",
    pytest.param("GPU:0", marks=[pytest.mark.gpu, pytest.mark.skipif(
        not tf.config.list_physical_devices("GPU"), reason="needs an NVIDIA GPU")]),
])  # fmt: skip
@pytest.mark.parametrize("name", KERAS_NAMES)
def test_slots_are_numpys_of_rounding_those_of_float32(name, device):
    # Given tables of mixed types and tables of float32 slots, when one step trains both in one op
    # for each type
    ids = batches(1)
    with tf.device(device):
        small, wide = (Trained(name, types).train(ids) for types in (ALL, (None,) * 3))
    np.testing.assert_array_equal(small.tables[0], wide.tables[0])  # which slots of before moved
    for slot, number in small.names.items():
        for i, slot_dtype in enumerate(ALL[:3]):
            found, moved = (np.asarray(tf.cast(model.slot(slot, i), tf.float32))
                            for model in (small, wide))  # fmt: skip
            rows = np.unique(ids[0][i])
            if slot_dtype == "bfloat16":
                # Then NumPy's bits, of the row's number, column, slot and step, say where to
                columns = np.arange(moved.shape[1])
                bits = random_bits(key_of(0), rows[:, None], columns, number)
                start = rounded(moved).copy()  # of rows that were not looked up
                start[rows] = (round_to_bfloat16(moved[rows], bits).astype(np.uint32) << 16).view(
                    np.float32
                )
                # (A sum over a row, or its order on a GPU, may differ by a last bit.)
                assert (found != start).mean() <= (0.01 if device == "GPU:0" else 0)
                np.testing.assert_allclose(found, start, rtol=2**-6)
            else:
                np.testing.assert_array_equal(found, moved)


@pytest.mark.parametrize("name", NAMES)
def test_training_stays_near_that_of_float32_slots(name):
    # Given the same training with slots of both types
    small, wide = (Trained(name, types).train(batches(20)) for types in (SMALL, (None,) * 3))
    # Then slots differ by the noise of some roundings of 2^-8, and on average by less
    for slot in small.names:
        for i in range(3):
            found, expected = (np.asarray(tf.cast(model.slot(slot, i), tf.float32))
                               for model in (small, wide))  # fmt: skip
            assert not np.array_equal(found, expected)
            assert np.abs(found - expected).max() < 0.2 * np.abs(expected).max()
            # An accumulator only grows, and the smallest sums are few; a mean over all is near
            assert abs((found - expected).mean()) < 0.01 * np.abs(expected).mean()
    for found, expected in zip(small.tables, wide.tables):
        np.testing.assert_allclose(found, expected, atol=0.05)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before, after", [(SMALL, (None,) * 3), ((None,) * 3, SMALL)],
                         ids=["bfloat16 to float32", "float32 to bfloat16"])  # fmt: skip
def test_a_checkpoint_with_slots_of_the_other_type(name, before, after, tmp_path):
    # Given a checkpoint of slots of one type, and tables of the other, trained and new
    steps = batches(5)
    saved = Trained(name, before).train(steps[:3])
    path = saved.write(tmp_path / "saved")
    trained, new = Trained(name, after).train(steps[:2]), Trained(name, after)
    # When both restore it
    trained.read(path)
    new.read(path)
    # Then rows are equal, and slots rounded to nearest
    for i, (a, b) in enumerate(zip(saved.values(), trained.values())):
        np.testing.assert_array_equal(b, rounded(a) if i >= 3 and after is SMALL else a)
    # And training goes on, also of tables that had no slots yet (TensorFlow 1's optimizers draw
    # other random numbers in each run)
    for model in (trained, new):
        model.train(steps[3:])
    if not name.startswith("v1") or after is not SMALL:
        assert_same(trained, new)


@pytest.mark.parametrize("name", ["adam", "rowwise_adagrad"])
def test_training_goes_on_from_a_checkpoint_to_the_same_bits(name, tmp_path):
    # Given a training of six steps, and a checkpoint of the third
    steps = batches(6)
    model = Trained(name, ALL).train(steps[:3])
    path = model.write(tmp_path / "half")
    model.train(steps[3:])
    # When a new model reads the checkpoint before it has made its slots, and goes on
    other = Trained(name, ALL)
    other.read(path)
    other.train(steps[3:])
    # Then all bits are those of the training that went on
    assert_same(model, other)


def test_seeds_repeat_and_none_is_zero():
    def train(**rounding):
        OPTIMIZERS["seeded"] = (
            lambda: wrap(KERAS.Adam(0.01), **rounding), OPTIMIZERS["adam"][1]
        )  # fmt: skip
        return Trained("seeded", SMALL).train(batches(3))

    none, zero = train(), train(stochastic_rounding_seed=0)
    one = train(stochastic_rounding_seed=1)
    del OPTIMIZERS["seeded"]
    assert_same(none, zero)
    assert any(not np.array_equal(a, b) for a, b in zip(zero.values(), one.values()))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("slot_dtype", ["float32", "bfloat16"])
def test_rows_of_16_bits(dtype, slot_dtype, tmp_path):
    # Given rows of 16 bits with slots of either type, when they are trained and restored
    model = Trained("adam", (slot_dtype,) * 3, dtype).train(batches(3))
    path = model.write(tmp_path / "saved")
    other = Trained("adam", (slot_dtype,) * 3, dtype).train(batches(1)).read(path)
    # Then slots have their type, and all their bits
    assert tf.as_dtype(model.slot("_momentums", 0).dtype).name == slot_dtype
    assert_same(model, other)


REFUSED = {
    "amsgrad": lambda: wrap(KERAS.Adam(0.1, amsgrad=True)),
    "rule 'ftrl'": lambda: wrap(KERAS.Ftrl(0.1)),
    "rule 'rmsprop'": lambda: wrap(KERAS.RMSprop(0.1)),
    "rule 'keras_momentum'": lambda: wrap(KERAS.SGD(0.1, momentum=0.9)),
    "rule 'lamb'": lambda: ge.optimizers.Lamb(0.1),
}


@pytest.mark.parametrize("words", REFUSED)
def test_other_optimizers_are_refused_by_name(words):
    # Given an optimizer whose slots may not be rounded, when it trains a table of small slots
    OPTIMIZERS["refused"] = REFUSED[words], {}
    model, wide = (Trained("refused", types) for types in (SMALL, ("float32",) * 3))
    del OPTIMIZERS["refused"]
    before = model.tables[0].numpy()
    # Then the error names table, optimizer and what to do, and rows are as before
    with pytest.raises(ValueError, match=f"table 'table0': .*{words}.*slot_dtype='float32'"):
        model.train(batches(1))
    np.testing.assert_array_equal(model.tables[0], before)
    wide.train(batches(1))


def test_an_optimizer_without_slots_trains_such_a_table():
    OPTIMIZERS["sgd"] = lambda: wrap(KERAS.SGD(0.1)), {}
    model = Trained("sgd", SMALL)
    del OPTIMIZERS["sgd"]
    before = model.tables[0].numpy()
    model.train(batches(2))
    assert not np.array_equal(model.tables[0], before)


@pytest.mark.parametrize("make", [lambda: KERAS.Adam(0.1), lambda: v1.train.AdamOptimizer(0.1)],
                         ids=["Keras", "v1"])  # fmt: skip
def test_stock_optimizers_are_refused(make):
    # Given a stock optimizer, whose slots would have the type of the rows
    OPTIMIZERS["stock"] = make, {}
    model = Trained("stock", SMALL)
    del OPTIMIZERS["stock"]
    # Then it is refused, with the words of what to do
    with pytest.raises(TypeError, match="table 'table0': expected a wrapped optimizer.*wrap"):
        model.train(batches(1))


@pytest.mark.parametrize("name", ["adam", "v1_adam"])
def test_dense_gradients_are_refused(name):
    model = Trained(name, SMALL)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.tables[1] ** 2)
    pairs = [(tape.gradient(loss, model.tables[1]), model.tables[1])]
    message = (
        r"'table1': expected a gradient of rows.* got a dense one of shape \(\d+, \d+\) in \w+;"
    )
    with pytest.raises(TypeError, match=message):
        model.optimizer.apply_gradients(pairs)


def test_a_type_that_is_set_too_late_is_refused():
    model = Trained("adam", (None,) * 3).train(batches(1))
    ge.optimizers.set_slot_dtype(model.tables[2], "bfloat16")
    with pytest.raises(ValueError, match="table 'table2': expected slots in bfloat16, got float32"):
        model.train(batches(1))


def test_arguments_are_checked():
    table = tf.Variable(tf.ones([3, 2]), name="user")
    with pytest.raises(ValueError, match="table 'user': expected slot_dtype to be one of"):
        ge.optimizers.set_slot_dtype(table, "float16")
    with pytest.raises(ValueError, match=r"expected a variable of shape \[rows, dim\].*\(3,\)"):
        ge.optimizers.set_slot_dtype(tf.Variable(tf.ones([3])), tf.bfloat16)
    with pytest.raises(TypeError, match="expected a variable, got 'user'"):
        ge.optimizers.set_slot_dtype("user", "bfloat16")
    with pytest.raises(TypeError, match="table 'keys': expected a table by row number"):
        ge.optimizers.set_slot_dtype(ge.keyed_table("keys", 2), "bfloat16")
    with pytest.raises(ValueError, match="table 'user': expected slot_dtype to be one of"):
        ge.TableConfig("user", 10, 2, slot_dtype="int8")
    with pytest.raises(ValueError, match="table 'user': .*ge.KeyedOptions"):
        ge.TableConfig("user", None, 2, slot_dtype="bfloat16")


def layer_model(slot_dtype, use_ema=False):
    configs = [
        ge.TableConfig("items", 50, 8, slot_dtype=slot_dtype), ge.TableConfig("shops", 20, 8)
    ]  # fmt: skip
    features = [ge.FeatureConfig("item", configs[0]), ge.FeatureConfig("shop", configs[1])]
    inputs = {name: keras.Input([3], dtype="int64", name=name) for name in ("item", "shop")}
    vectors = ge.layers.GroupEmbedding(features, concat=True, name="embedding")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(vectors))
    optimizer = wrap(keras.optimizers.Adam(0.05, use_ema=use_ema))
    model.compile(optimizer, "mse")
    return model


def data():
    random = np.random.default_rng(SEED)
    ids = {"item": random.integers(0, 50, [64, 3]), "shop": random.integers(0, 20, [64, 3])}
    return ids, (ids["item"].sum(1, keepdims=True) / 75 - 1).astype(np.float32)


def slot_types(model):
    return sorted(
        tf.as_dtype(v.dtype).name for v in model.optimizer.variables if len(v.shape) == 2
    )  # fmt: skip


@pytest.mark.parametrize("use_ema", [False, True])
def test_a_layers_table_under_fit_and_in_files(use_ema, tmp_path):
    # Given a layer with one table of small slots
    keras.utils.set_random_seed(SEED)
    model = layer_model("bfloat16", use_ema)
    x, y = data()
    before = model.evaluate(x, y, verbose=0)
    # When it is trained, and written to a file of Keras
    model.fit(x, y, batch_size=16, epochs=3, verbose=0)
    assert model.evaluate(x, y, verbose=0) < before
    assert slot_types(model).count("bfloat16") == 2  # m and v of one table; no average
    model.save(tmp_path / "model.keras")
    # Then the loaded model has its rows, and the table its type
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("embedding").features[0].table.slot_dtype == "bfloat16"
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.parametrize("before, after", [("bfloat16", None), (None, "bfloat16")])
def test_weights_files_of_keras_hold_slots_of_either_type(before, after, tmp_path):
    # Given a trained model, and one whose slots have the other type
    x, y = data()
    models = [layer_model(slot_dtype) for slot_dtype in (before, after)]
    for model in models:
        model.fit(x, y, batch_size=16, verbose=0)
    # When a file of Keras goes from one to the other
    store = {}
    models[0].optimizer.save_own_variables(store)
    models[1].optimizer.load_own_variables(store)
    # Then slots are equal, rounded to nearest
    for a, b in zip(models[0].optimizer.variables, models[1].optimizer.variables):
        a, b = (np.asarray(tf.cast(one, tf.float32)) for one in (a, b))
        assert np.array_equal(a, b) or np.array_equal(rounded(a), b)


def test_a_graph_of_tensorflow_1(tmp_path):
    # Given a session that trains a table of small slots beside another one
    def run(restore):
        with tf.Graph().as_default(), v1.Session() as session:
            start = np.random.default_rng(SEED).normal(size=[ROWS, DIM]).astype(np.float32)
            tables = [v1.get_variable(n, initializer=start, use_resource=True) for n in "ab"]
            ge.optimizers.set_slot_dtype(tables[0], "bfloat16")
            ids = tf.constant(batches(1)[0])
            rows = ge.lookup(tables, [ids[0], ids[1]])
            adam = wrap(v1.train.AdamOptimizer(0.01))
            step = adam.minimize(tf.add_n([tf.reduce_sum((of - 1) ** 2) for of in rows]))
            saver = v1.train.Saver()
            session.run(v1.global_variables_initializer())
            if restore:
                saver.restore(session, restore)
            else:
                session.run(step)
                session.run(step)
            slots = {(t.op.name, n): adam.get_slot(t, n) for t in tables for n in "mv"}
            values = session.run([tables, {k: tf.cast(v, tf.float32) for k, v in slots.items()}])
            return {k: v.dtype for k, v in slots.items()}, values, saver.save(
                session, str(tmp_path / "model"))  # fmt: skip

    # When it is trained, saved and restored
    dtypes, (tables, slots), path = run(None)
    _, (restored, restored_slots), _ = run(path)
    # Then slots have their types, moved, and come back
    assert [dtypes["a", n].base_dtype for n in "mv"] == [tf.bfloat16] * 2
    assert [dtypes["b", n].base_dtype for n in "mv"] == [tf.float32] * 2
    assert np.abs(slots["a", "m"]).max() > 0
    np.testing.assert_array_equal(tables, restored)
    for name, values in slots.items():
        np.testing.assert_array_equal(values, restored_slots[name])
