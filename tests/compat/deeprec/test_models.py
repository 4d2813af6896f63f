"""Models in the style of DeepRec's modelzoo, small: DLRM, Wide & Deep, and the lookups of DIN."""

import os

import numpy as np
import pytest
import tensorflow as tf2

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ROWS, BATCH, STEPS = 96, 16, 12
CATEGORIES, NUMBERS = ("user", "item", "city"), ("age", "price")
pytestmark = pytest.mark.skipif(
    not hasattr(tf2.compat.v1, "feature_column"), reason="this TensorFlow has no feature columns"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Samples whose label follows from the user."""
    rng = np.random.default_rng(3)
    user = rng.integers(0, 9, ROWS)
    table = {
        "clicked": pa.array(user % 2, pa.int64()),
        "user": [f"u{i}" for i in user],
        "item": [f"i{i}" for i in rng.integers(0, 30, ROWS)],
        "city": [f"c{i}" for i in rng.integers(0, 4, ROWS)],
        "age": pa.array(rng.uniform(0, 1, ROWS), pa.float32()),
        "price": pa.array(rng.uniform(0, 1, ROWS), pa.float32()),
    }
    path = str(tmp_path_factory.mktemp("samples") / "train.parquet")
    pq.write_table(pa.table(table), path, row_group_size=20)
    return path


def make_input(tf, path, config, hooks):
    """Features and labels, staged; an op that starts reading."""
    dataset = tf.data.experimental.ParquetDataset(path, batch_size=BATCH, drop_remainder=True)
    dataset = dataset.repeat(20).map(lambda batch: (batch, batch.pop("clicked")))
    iterator = tf.data.make_initializable_iterator(dataset)
    element = tf.staged(iterator.get_next(), num_threads=1, capacity=4)
    config.graph_options.optimizer_options.do_smart_stage = True
    hooks.append(tf.make_prefetch_hook())
    return *element, iterator.initializer


def make_columns(tf, keyed, scope):
    option = tf.EmbeddingVariableOption(
        filter_option=tf.CounterFilter(filter_freq=1),
        evict_option=tf.GlobalStepEvict(steps_to_live=4000),
    )
    with tf.feature_column.group_embedding_column_scope(name=scope):
        for name in CATEGORIES:
            category = (
                tf.feature_column.categorical_column_with_embedding(
                    name, dtype=tf.string, ev_option=option
                )
                if keyed
                else tf.feature_column.categorical_column_with_hash_bucket(name, 50)
            )
            yield tf.feature_column.embedding_column(category, 4, do_fusion=True)


def dlrm(tf, features, keyed):
    """Dot products of embeddings, beside a layer of the numbers."""
    numbers = [tf.feature_column.numeric_column(name) for name in NUMBERS]
    columns = list(make_columns(tf, keyed, "categorical"))
    embeddings = {}
    with tf.variable_scope("input_layer", reuse=tf.AUTO_REUSE):
        dense = tf.feature_column.input_layer(features, numbers)
        tf.feature_column.input_layer(features, columns, cols_to_output_tensors=embeddings)
    dense = tf.layers.dense(dense, 4, tf.nn.relu, name="bottom")
    stacked = tf.stack([dense, *(embeddings[column] for column in columns)], axis=1)
    products = tf.reshape(tf.matmul(stacked, stacked, transpose_b=True), [-1, 16])
    return tf.layers.dense(tf.concat([dense, products], 1), 1, name="top")


def wide_and_deep(tf, features, keyed):
    """A linear model of hashed categories, beside layers of embeddings."""
    columns = list(make_columns(tf, keyed, "categorical"))
    wide = [tf.feature_column.categorical_column_with_hash_bucket(n, 50) for n in CATEGORIES]
    with tf.variable_scope("deep"):
        deep = tf.feature_column.input_layer(features, columns)
        deep = tf.layers.dense(deep, 8, tf.nn.relu, name="hidden")
    with tf.variable_scope("wide"):
        linear = tf.feature_column.linear_model(features, wide, do_fusion=True)
    return tf.layers.dense(deep, 1, name="logit") + linear


def make_optimizer(tf, name):
    step = tf.train.get_or_create_global_step()
    return {
        "adam": lambda: tf.train.AdamOptimizer(0.05),
        "adamasync": lambda: tf.train.AdamAsyncOptimizer(0.05),
        "adagraddecay": lambda: tf.train.AdagradDecayOptimizer(0.3, global_step=step),
        "adamw": lambda: tf.train.AdamWOptimizer(0.001, learning_rate=0.05),
    }[name]()


@pytest.mark.parametrize(
    "keyed", [pytest.param(False, marks=pytest.mark.slow), True], ids=["hashed", "keyed"]
)
@pytest.mark.parametrize(
    "model, optimizer",
    [
        pytest.param(dlrm, "adamasync", marks=pytest.mark.slow),
        pytest.param(dlrm, "adagraddecay", marks=pytest.mark.slow),
        (wide_and_deep, "adamw"),
        pytest.param(wide_and_deep, "adam", marks=pytest.mark.slow),
    ],
)
def test_a_model_trains_and_goes_on(tf, path, tmp_path, model, optimizer, keyed):
    # Given a model of columns, fed by threads from a Parquet file
    config, hooks = tf.ConfigProto(), []
    tf.set_random_seed(5)
    features, label, start = make_input(tf, path, config, hooks)
    logit = tf.squeeze(model(tf, features, keyed), 1)
    loss = tf.losses.sigmoid_cross_entropy(label, logit)
    step = tf.train.get_or_create_global_step()
    train = make_optimizer(tf, optimizer).minimize(loss, global_step=step)
    scaffold = tf.train.Scaffold(
        local_init_op=tf.group(tf.local_variables_initializer(), tf.tables_initializer(), start),
        saver=tf.train.Saver(max_to_keep=1, sharded=True),
    )
    losses = []
    # When it is trained in two sessions, the second from the checkpoint of the first
    for last in (STEPS, 2 * STEPS):
        with tf.train.MonitoredTrainingSession(
            hooks=[*hooks, tf.train.StopAtStepHook(last_step=last)],
            scaffold=scaffold,
            checkpoint_dir=str(tmp_path),
            save_checkpoint_steps=STEPS,
            config=config,
        ) as session:
            while not session.should_stop():
                losses.append(session.run([loss, train])[0])
    # Then it took the steps that it was to, and learned all along
    assert len(losses) == 2 * STEPS
    assert np.mean(losses[-6:]) < np.mean(losses[STEPS : STEPS + 6]) < np.mean(losses[:6])
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith(f"model.ckpt-{2 * STEPS}")


def test_a_sequence_is_looked_up_as_in_din(tf):
    # Given tables of keys, and the items that a user has clicked, as a tensor of strings
    from tensorflow.python.feature_column.feature_column import _LazyBuilder
    from tensorflow.python.ops.embedding_ops import fused_safe_embedding_lookup_sparse

    table = tf.get_embedding_variable("item", 4, initializer=tf.ones_initializer())
    clicks = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], ["5", "5", "7"], [2, 2])
    ids = tf.SparseTensor(clicks.indices, tf.strings.to_number(clicks.values, tf.int64), [2, 2])
    column = tf.feature_column.sequence_categorical_column_with_identity("clicks", 10)
    found = column._get_sparse_tensors(_LazyBuilder({"clicks": ids}))
    # When they are looked up one by one, and trained with clipped gradients
    rows = fused_safe_embedding_lookup_sparse(table, found.id_tensor)
    optimizer = tf.train.AdamAsyncOptimizer(0.1)
    gradients = optimizer.compute_gradients(tf.reduce_sum(rows))
    gradients = [(tf.clip_by_norm(gradient, 5), variable) for gradient, variable in gradients]
    train = optimizer.apply_gradients(gradients)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(rows)
        session.run(train)
        after = session.run(rows)
    # Then each click has its row, absent ones zeros, and training moved those that came
    np.testing.assert_array_equal(before[..., 0], [[1, 0], [1, 1]])
    assert np.all(after[1] < 1) and after[0, 1, 0] == 0


def test_a_work_queue_is_refused(tf):
    from tensorflow.python.ops.work_queue import WorkQueue

    with pytest.raises(NotImplementedError, match="WorkQueue.*--workqueue false"):
        WorkQueue([os.devnull], num_epochs=2)


def test_a_scope_keeps_its_weights_in_float32(tf):
    # Given a layer of bfloat16 inputs in a scope that keeps weights, and a table of keys in it
    inputs = tf.constant([[1.0, 2.0], [3.0, -1.0]])
    with tf.variable_scope("mlp", initializer=tf.ones_initializer()).keep_weights(tf.float32):
        outputs = tf.layers.dense(tf.cast(inputs, tf.bfloat16), 3, name="top")
        count = tf.get_variable("count", [2], tf.int64, tf.zeros_initializer())
    loss = tf.reduce_sum(tf.cast(outputs, tf.float32))
    train = tf.train.GradientDescentOptimizer(2.0**-10).minimize(loss)
    kernel, bias = tf.trainable_variables()[:2]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        # When it is trained
        before = session.run(outputs)
        session.run(train)
        trained, _ = session.run([kernel, bias])
    # Then it computes in bfloat16, and a change that bfloat16 cannot hold stays in the weights
    assert outputs.dtype == tf.bfloat16 and count.dtype.base_dtype == tf.int64
    assert kernel.dtype.base_dtype == bias.dtype.base_dtype == tf.float32
    np.testing.assert_array_equal(before.astype(np.float32), [[3.0] * 3, [2.0] * 3])
    np.testing.assert_array_equal(trained, [[1 - 4 * 2.0**-10] * 3, [1 - 2.0**-10] * 3])


def test_a_getter_of_a_scope_sees_the_weights_that_are_kept(tf):
    asked = []

    def getter(getter, name, *args, **kwargs):
        asked.append((name, kwargs["dtype"]))
        return getter(name, *args, **kwargs)

    # When a scope with a getter of its own keeps weights, cut by a partitioner
    cut = tf.fixed_size_partitioner(2)
    scope = tf.variable_scope("mlp", custom_getter=getter, partitioner=cut)
    with scope.keep_weights():
        value = tf.get_variable("kernel", [4, 2], tf.bfloat16)
    # Then the getter makes float32, and the parts' value is of the type that was asked for
    assert asked == [("mlp/kernel", tf.float32)]
    assert value.dtype == tf.bfloat16 and value.shape == [4, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_norm_moves_its_averages_in_a_scope_with_a_partitioner(tf, dtype):
    # Given a batch norm of either type in a scope that cuts variables and keeps weights
    inputs = tf.cast(tf.constant([[1.0, 2.0], [3.0, 4.0]]), dtype)
    scope = tf.variable_scope("mlp", partitioner=tf.fixed_size_partitioner(2))
    with scope.keep_weights(tf.float32):
        outputs = tf.layers.batch_normalization(inputs, training=True, momentum=0.5)
    moving = [v for v in tf.global_variables() if "moving" in v.name]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        # When its updates run
        values = session.run(outputs)
        session.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
        mean, variance = session.run(moving)
    # Then the averages, whole and of float32, have moved half of the way
    assert outputs.dtype == dtype
    np.testing.assert_allclose(values.astype(np.float32), [[-1, -1], [1, 1]], rtol=1e-2)
    np.testing.assert_allclose(mean, [1.0, 1.5])
    np.testing.assert_allclose(variance, [1.0, 1.0])
    assert all(v.dtype.base_dtype == tf.float32 for v in tf.global_variables())
