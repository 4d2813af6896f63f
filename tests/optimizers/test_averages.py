"""`use_ema` of Keras's optimizers: keyed tables against stock's variables with the same rows."""

import numpy as np
import pytest
import tensorflow as tf
from variables import storages

import group_embedding as ge
from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.lookups.lookup_table import variable_of_all

ROWS, DIMS = 12, {"users": 3, "items": 9, "shops": 5}
KEYED = ("users", "items")  # the third has row numbers
KEYS = np.arange(ROWS) + ROWS * 2**33  # that start as rows of a matrix of ROWS rows
START = {
    name: np.random.default_rng(dim).normal(size=[ROWS, dim]).astype(np.float32)
    for name, dim in DIMS.items()
}
AVERAGED = {"use_ema": True, "ema_momentum": 0.8}
OPTIMIZERS = {  # whether a step looks every row up, as stock moves the moments of all
    "SGD": (False, {}),
    "SGD_clipped": (False, {"global_clipnorm": 1.0}),  # gradients that no op can be fused with
    "Adagrad": (False, {}),
    "Adam": (True, {}),
}
SMALL_DISK = pytest.param(
    ge.StorageOption(ge.StorageType.DRAM_SSDHASH, storage_size=[1 << 13, 1 << 30]),
    id="DRAM_SSDHASH",
)
optimizers = keras.optimizers


def make_optimizer(name, **options):
    kind, more = getattr(optimizers, name.partition("_")[0]), OPTIMIZERS[name][1]
    return kind(0.1, **AVERAGED, **more, **options)


def make_batches(steps, every_row):
    """Few rows at first, so that others are first trained when averages are of several steps."""
    generator = np.random.default_rng(7)
    for step in range(steps):
        drawn = generator.integers(0, min(ROWS, 2 + step), [8, 2])
        yield np.arange(ROWS).reshape(-1, 2) if every_row else drawn


def make_stock():
    return {name: tf.Variable(START[name], name=name) for name in DIMS}


def make_ours(storage=None, dtype=tf.float32):
    def make(name):
        init = ge.InitializerOption(initializer=START[name], default_value_dim=ROWS)
        option = ge.EmbeddingVariableOption(init_option=init, storage_option=storage)
        return ge.get_embedding_variable(name, DIMS[name], value_dtype=dtype, ev_option=option)

    storage = storage or ge.StorageOption()
    return {name: make(name) if name in KEYED else tf.Variable(START[name]) for name in DIMS}


def keys_of(tables, name, rows):
    is_keyed = isinstance(tables[name], ge.EmbeddingVariable)
    return tf.gather(KEYS, rows) if is_keyed else tf.convert_to_tensor(rows)


def make_step(tables, optimizer, traced=True):
    variables = list(tables.values())
    optimizer.build(variables)

    def step(rows):
        with tf.GradientTape() as tape:
            keys = [keys_of(tables, name, rows) for name in tables]
            vectors = ge.group_embedding_lookup(variables, keys)
            loss = sum(tf.reduce_sum(tf.cast(v, tf.float32) ** 2) for v in vectors) / 4
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    return tf.function(step, reduce_retracing=True) if traced else step


def rows_of(tables):
    return {
        name: tf.nn.embedding_lookup(table, keys_of(tables, name, np.arange(ROWS))).numpy()
        for name, table in tables.items()
    }


def assert_close(found, expected, tolerance=2e-5):
    for name, rows in expected.items():
        np.testing.assert_allclose(found[name], rows, tolerance, tolerance, err_msg=name)


def assert_like_stock(name, ours, stock, traced=True, tolerance=2e-5, **options):
    """Trains both, compares rows, compares averages, and once more from there."""
    sides = [
        (ours, ge.optimizers.wrap(make_optimizer(name, **options))),
        (stock, make_optimizer(name, **options)),
    ]
    steps = [make_step(*side, traced) for side in sides]
    for num_steps in (7, 4):
        for rows in make_batches(num_steps, every_row=OPTIMIZERS[name][0]):
            for step in steps:
                step(tf.constant(rows))
        assert_close(rows_of(ours), rows_of(stock), tolerance)
        for tables, optimizer in sides:
            optimizer.finalize_variable_values(list(tables.values()))
        assert_close(rows_of(ours), rows_of(stock), tolerance)


@pytest.mark.covering(1)
@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("overwrite", [None, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_averages_are_those_of_stock(name, overwrite, traced):
    # Given keyed tables of two dims and one of row numbers / When they are trained, and averages
    # are written into them, in steps too / Then rows are those of stock's variables
    options = {"ema_overwrite_frequency": overwrite}
    assert_like_stock(name, make_ours(), make_stock(), traced, **options)


@pytest.mark.parametrize("storage", [SMALL_DISK, *storages.ON_GPU])
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_averages_of_tables_in_every_storage(name, storage):
    # Given tables most of whose rows are on disk, or whose rows are on a GPU
    # When they are trained, and averages written / Then rows are those of stock's variables
    assert_like_stock(name, make_ours(storage), make_stock(), ema_overwrite_frequency=3)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_averages_are_float32_whatever_rows_are(dtype):
    tolerance = 5e-3 if dtype == tf.float16 else 4e-2
    assert_like_stock("SGD", make_ours(dtype=dtype), make_stock(), tolerance=tolerance)


def test_the_average_of_a_key_that_was_erased_starts_anew():
    # Given trained keys, of which one is erased
    tables = {"users": make_ours()["users"]}
    optimizer = ge.optimizers.wrap(make_optimizer("SGD"))
    step = make_step(tables, optimizer)
    for _ in range(5):
        step(tf.constant([[0, 1]]))
    tables["users"].erase(KEYS[:1])
    # When it is trained once more
    step(tf.constant([[0, 1]]))
    # Then its average is between the row it started with and the one it has
    start, row = START["users"][0], rows_of(tables)["users"][0]
    optimizer.finalize_variable_values(list(tables.values()))
    np.testing.assert_allclose(rows_of(tables)["users"][0], 0.8 * start + 0.2 * row, rtol=1e-5)


@pytest.mark.parametrize("overflowing", [0, 3])
def test_a_step_that_overflows_moves_no_average(overflowing):
    # Given a LossScaleOptimizer around the optimizer, and a step whose gradients are infinite
    variables = [make_ours()["users"], make_ours()["items"]]
    plain = [make_ours()["users"], make_ours()["items"]]
    optimizer = ge.optimizers.wrap(make_optimizer("SGD"))
    scaled = keras.mixed_precision.LossScaleOptimizer(
        ge.optimizers.wrap(make_optimizer("SGD")), initial_scale=4.0
    )
    scaled.build(variables)
    optimizer.build(plain)

    @tf.function(reduce_retracing=True)
    def step(rows, factor, variables, is_scaled):
        with tf.GradientTape() as tape:
            vectors = ge.group_embedding_lookup(variables, [tf.gather(KEYS, rows)] * 2)
            loss = sum(map(tf.reduce_sum, vectors)) * factor
            if is_scaled:
                scale = getattr(scaled, "scale_loss", None) or scaled.get_scaled_loss
                loss = scale(loss)
        gradients = tape.gradient(loss, variables)
        if is_scaled and not IS_KERAS_3:
            gradients = scaled.get_unscaled_gradients(gradients)
        (scaled if is_scaled else optimizer).apply_gradients(zip(gradients, variables))

    # When both are trained, one without that step
    for i, rows in enumerate(make_batches(6, False)):
        step(rows, tf.constant(np.inf if i == overflowing else 1.0), variables, True)
        if i != overflowing:
            step(rows, tf.constant(1.0), plain, False)
        elif not IS_KERAS_3:  # Keras 2 counts a step that it skips
            optimizer.iterations.assign_add(1)
    # Then their averages are the same
    scaled.inner_optimizer.finalize_variable_values(variables)
    optimizer.finalize_variable_values(plain)
    for found, expected in zip(variables, plain):
        np.testing.assert_allclose(found.export().values, expected.export().values, rtol=1e-5)


def make_model(keyed=True, optimizer="SGD", **options):
    """Three tables, one of row numbers, in one layer; or of stock layers."""
    inputs = {name: keras.Input((2,), dtype="int64", name=name) for name in DIMS}
    if keyed:
        tables = []
        for name, dim in DIMS.items():
            num_rows = None if name in KEYED else ROWS
            tables.append(ge.TableConfig(name, num_rows, dim, keras.initializers.Constant(0.5)))
        features = [ge.FeatureConfig(table.name, table, combiner="mean") for table in tables]
        vectors = ge.layers.GroupEmbedding(features, concat=True, name="embedding")(inputs)
    else:
        pooled = [
            keras.layers.GlobalAveragePooling1D()(
                keras.layers.Embedding(ROWS, dim, keras.initializers.Constant(0.5))(inputs[name])
            )
            for name, dim in DIMS.items()
        ]
        vectors = keras.layers.Concatenate()(pooled)
    score = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.1))(vectors)
    model = keras.Model(inputs, score)
    optimizer = make_optimizer(optimizer, **options)
    model.compile(ge.optimizers.wrap(optimizer) if keyed else optimizer, "mse")
    return model


def model_batch(step, keyed=True):
    rows = np.random.default_rng(step).integers(0, min(ROWS, 3 + 2 * step), [8, 2])
    inputs = {name: KEYS[rows] if keyed and name in KEYED else rows for name in DIMS}
    return inputs, np.sin(rows.sum(1, keepdims=True)).astype(np.float32)


def fit(model, steps, keyed=True, callbacks=()):
    batches = [model_batch(step, keyed) for step in steps]
    inputs = {name: np.concatenate([b[0][name] for b in batches]) for name in DIMS}
    targets = np.concatenate([b[1] for b in batches])
    return model.fit(
        inputs, targets, batch_size=8, epochs=2, shuffle=False, verbose=0,
        validation_data=model_batch(99, keyed), callbacks=list(callbacks),
    ).history  # fmt: skip


@pytest.mark.parametrize("overwrite", [None, 2])
def test_fit_ends_with_the_averages_in_the_tables(overwrite):
    # Given a model of keyed tables, and one of stock layers with the same rows
    ours, stock = (make_model(k, ema_overwrite_frequency=overwrite) for k in (True, False))
    # When both are fitted
    histories = fit(ours, range(6)), fit(stock, range(6), keyed=False)
    # Then losses and predictions are the same
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-4)
    found, expected = (
        m.predict(model_batch(99, k)[0], verbose=0) for m, k in ((ours, True), (stock, False))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2 has no SwapEMAWeights")
@pytest.mark.parametrize("on_epoch", [False, True])
def test_a_model_is_evaluated_with_its_averages(on_epoch):
    # Given both models / When they are fitted with the callback that swaps averages and weights
    histories = [
        fit(make_model(k), range(6), k, [keras.callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)])
        for k in (True, False)
    ]
    # Then they are evaluated alike
    for metric in ("loss", "val_loss"):
        np.testing.assert_allclose(histories[0][metric], histories[1][metric], rtol=1e-4)


def through_keras_file(model, folder):
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    ge.optimizers.wrap(loaded.optimizer)
    return loaded


def through_weights(model, folder):
    model.save_weights(folder / "model.weights.h5")
    loaded = make_model(optimizer="Adagrad")
    loaded.optimizer.build(loaded.trainable_variables)
    loaded.load_weights(folder / "model.weights.h5")
    return loaded


def through_checkpoint(model, folder):
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(folder / "all")
    loaded = make_model(optimizer="Adagrad")
    loaded.optimizer.build(loaded.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer)
    checkpoint.restore(path).assert_existing_objects_matched()
    return loaded


@pytest.mark.parametrize("save", [through_keras_file, through_weights, through_checkpoint])
def test_averages_go_on_from_a_file(save, tmp_path):
    # Given a model that was trained, saved and loaded
    model = make_model(optimizer="Adagrad")
    for step in range(4):
        model.train_on_batch(*model_batch(step))
    loaded = save(model, tmp_path)
    # When both are trained on, and averages are written
    for one in (model, loaded):
        for step in range(4, 8):
            one.train_on_batch(*model_batch(step))
        one.optimizer.finalize_variable_values(one.trainable_variables)
    # Then they are the same, to the bit
    for mine, other in zip(model.trainable_variables, loaded.trainable_variables):
        mine, other = variable_of_all(mine), variable_of_all(other)
        if isinstance(mine, ge.EmbeddingVariable):
            mine, other = mine.export().values, other.export().values
        np.testing.assert_array_equal(mine, other)
