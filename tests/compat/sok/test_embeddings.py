"""SOK version 1's layers."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

from group_embedding import exchange, sok
from group_embedding.lookups.lookup_table import tf_variable

SLOTS, NNZ, DIM, BATCH = 3, 2, 4, 8
KEYS = np.array([0, 3, 5, 8, 11])


def sparse_batch(step):
    """[BATCH * SLOTS, NNZ], with empty slots; and labels [BATCH, 1]."""
    rng = np.random.default_rng(step)
    mask = rng.random([BATCH * SLOTS, NNZ]) < 0.7
    keys = rng.choice(KEYS, mask.shape)
    return keys, mask, rng.normal(size=[BATCH, 1]).astype(np.float32)


def to_sparse(keys, mask):
    return tf.SparseTensor(np.argwhere(mask), keys[mask], mask.shape)


def mine(rows, per_sample=1):
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    size = BATCH // num_ranks * per_sample
    return rows[rank * size : (rank + 1) * size]


def start():
    return tf.keras.initializers.RandomUniform(-1, 1, seed=3)


def train_layer(layer, inputs_of, optimizer, use_scope=False, num_steps=5):
    """Trains as SOK's documents do: losses over the batch of all ranks. Returns the rows of
    KEYS."""
    kernel = tf.constant(np.linspace(-1, 1, layer.num_outputs), tf.float32)[:, None]

    @tf.function(reduce_retracing=True)
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            vectors = tf.reshape(layer(inputs, training=True), [-1, layer.num_outputs])
            loss = tf.nn.compute_average_loss(
                tf.reduce_sum((vectors @ kernel - labels) ** 2, axis=1), global_batch_size=BATCH
            )
        tables, others = sok.split_embedding_variable_from_others(layer.trainable_variables)
        assert len(tables) == 1 and not others
        pairs = list(zip(tape.gradient(loss, tables), tables))
        if use_scope:
            with sok.OptimizerScope(tables):
                optimizer.apply_gradients(pairs)
        else:
            optimizer.apply_gradients(pairs)

    for i in range(num_steps):
        step(*inputs_of(i))
    rows = sok.all2all_dense_embedding(layer.embedding_variable, tf.constant(KEYS, tf.int64))
    return rows.numpy()


def my_sparse(step):
    keys, mask, labels = sparse_batch(step)
    return to_sparse(mine(keys, SLOTS), mine(mask, SLOTS)), mine(labels)


def my_dense(step):
    keys, _, labels = sparse_batch(step)
    return tf.constant(mine(keys, SLOTS).reshape(-1, SLOTS, NNZ)), mine(labels)


def train_distributed(use_hashtable=True, optimizer="sok", combiner="Mean"):
    sok.Init(global_batch_size=BATCH)
    num_ranks = exchange.current().num_ranks
    layer = sok.DistributedEmbedding(
        combiner,
        12 // num_ranks,
        DIM,
        SLOTS,
        NNZ,
        max_feature_num=SLOTS * NNZ,
        use_hashtable=use_hashtable,
        embedding_initializer=start(),
    )
    layer.num_outputs = SLOTS * DIM
    make = sok.optimizers.Adam if optimizer == "sok" else tf.keras.optimizers.Adam
    return train_layer(layer, my_sparse, make(learning_rate=0.1), optimizer == "stock")


def train_dense(use_hashtable=True):
    sok.Init(global_batch_size=BATCH)
    num_ranks = exchange.current().num_ranks
    layer = sok.All2AllDenseEmbedding(
        12 // num_ranks,
        DIM,
        SLOTS,
        NNZ,
        use_hashtable=use_hashtable,
        embedding_initializer=start(),
    )
    layer.num_outputs = SLOTS * NNZ * DIM
    return train_layer(layer, my_dense, sok.optimizers.Adam(learning_rate=0.1))


def oracle(combiner=None):
    """Plain TensorFlow, with an Adam that moves what was looked up."""
    table = tf.Variable(start()([12, DIM]))
    optimizer = sok.optimizers.Adam(learning_rate=0.1)
    num_outputs = SLOTS * DIM * (1 if combiner else NNZ)
    kernel = tf.constant(np.linspace(-1, 1, num_outputs), tf.float32)[:, None]
    for i in range(5):
        keys, mask, labels = sparse_batch(i)
        with tf.GradientTape() as tape:
            if combiner:
                vectors = tf.nn.safe_embedding_lookup_sparse(
                    table, to_sparse(keys, mask), combiner=combiner
                )
            else:
                vectors = tf.nn.embedding_lookup(table, keys)
            vectors = tf.reshape(vectors, [BATCH, num_outputs])
            loss = tf.reduce_mean((vectors @ kernel - labels) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    return table.numpy()[KEYS]


CASES = {
    "hash_table": (train_distributed, (True,), "mean"),
    "rows": (train_distributed, (False,), "mean"),
    "stock_optimizer_in_scope": (train_distributed, (True, "stock"), "mean"),
    "sum": (train_distributed, (True, "sok", "Sum"), "sum"),
    "dense": (train_dense, (True,), None),
    "dense_rows": (train_dense, (False,), None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_layer_trains_as_tensorflow_does(case):
    train, arguments, combiner = CASES[case]

    np.testing.assert_allclose(train(*arguments), oracle(combiner), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "case", by_day(CASES, (), nightly=set(CASES) - {"stock_optimizer_in_scope"})
)
def test_two_ranks_train_a_layer_as_tensorflow_does(two_ranks, case):
    train, arguments, combiner = CASES[case]

    for rows in two_ranks.run(train, *arguments):
        np.testing.assert_allclose(rows, oracle(combiner), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("key_dtype", ["int64", "uint32", "int32", "uint64"])
def test_shapes_and_key_types(key_dtype):
    sparse = sok.DistributedEmbedding("sum", 100, DIM, SLOTS, NNZ, key_dtype=key_dtype)
    dense = sok.All2AllDenseEmbedding(100, DIM, SLOTS, NNZ, key_dtype=key_dtype)
    dynamic = sok.All2AllDenseEmbedding(100, DIM, SLOTS, NNZ, True, key_dtype=key_dtype)
    keys, mask, _ = sparse_batch(0)
    keys = keys.astype(key_dtype)

    assert sparse(to_sparse(keys, mask)).shape == (BATCH, SLOTS, DIM)
    assert dense(keys.reshape(BATCH, SLOTS, NNZ)).shape == (BATCH, SLOTS, NNZ, DIM)
    assert dense(keys.reshape(-1)).shape == (BATCH, SLOTS, NNZ, DIM)
    assert dynamic(tf.unique(keys.reshape(-1)).y).shape[1:] == (DIM,)


def test_mixed_precision_keeps_rows_in_float32():
    layer = sok.All2AllDenseEmbedding(100, DIM, SLOTS, NNZ, dtype="mixed_float16")

    vectors = layer(np.zeros([1, SLOTS, NNZ], np.int64))

    assert vectors.dtype == tf.float16
    assert tf.as_dtype(layer.embedding_variable.dtype) == tf.float32


@pytest.mark.parametrize("training, num_keys", [(True, 1), (False, 0)])
def test_without_training_nothing_is_learnt(training, num_keys):
    layer = sok.All2AllDenseEmbedding(100, DIM, 1, 1)
    optimizer = sok.SGD(0.1)
    table = layer.trainable_variables[0]

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([[[7]]]), training=training))
    gradient = tape.gradient(loss, table)
    if gradient is not None:
        optimizer.apply_gradients([(gradient, table)])

    assert (gradient is None) != training
    assert len(sok.export(table)[0]) == num_keys


@pytest.mark.parametrize("use_hashtable", [True, False])
def test_values_are_loaded_and_saved(tmp_path, use_hashtable):
    values = np.arange(20, dtype=np.float32).reshape(5, 4)
    layer = sok.All2AllDenseEmbedding(5, 4, 1, 1, use_hashtable=use_hashtable)
    other = sok.All2AllDenseEmbedding(5, 4, 1, 1, use_hashtable=use_hashtable)
    saver = sok.Saver()

    saver.load_embedding_values(layer.embedding_variable, [values[:2], values[2:]])
    saver.dump_to_file(layer.embedding_variable, str(tmp_path))
    saver.restore_from_file(other.embedding_variable, str(tmp_path))

    keys = np.arange(5).reshape(5, 1, 1)
    np.testing.assert_array_equal(other(keys)[:, 0, 0], values)
    with pytest.raises(ValueError, match="expected values of shape"):
        saver.load_embedding_values(layer.embedding_variable, values[:, :3])


def test_a_model_of_a_layer_learns_and_is_saved(tmp_path):
    keys = tf.keras.Input([SLOTS, NNZ], dtype="int64")
    embedded = sok.All2AllDenseEmbedding(12, DIM, SLOTS, NNZ, use_hashtable=False)(keys)
    outputs = tf.keras.layers.Dense(1)(tf.keras.layers.Reshape([SLOTS * NNZ * DIM])(embedded))
    model = tf.keras.Model(keys, outputs)
    model.compile(sok.OptimizerWrapper(tf.keras.optimizers.SGD(0.1)), "mse")
    data, _, labels = sparse_batch(0)
    data = data.reshape(BATCH, SLOTS, NNZ)

    before = model.evaluate(data, labels, verbose=0)
    model.fit(data, labels, epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")

    assert model.evaluate(data, labels, verbose=0) < before
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(data), model(data), rtol=1e-6)


def test_xla_is_refused():
    keys = tf.keras.Input([SLOTS, NNZ], dtype="int64")
    embedded = sok.All2AllDenseEmbedding(12, DIM, SLOTS, NNZ, name="keys")(keys)
    model = tf.keras.Model(keys, embedded)
    data = sparse_batch(0)[0].reshape(BATCH, SLOTS, NNZ)

    # Keras 3 asks the layers when it compiles, Keras 2 first traces them in fit.
    with pytest.raises(ValueError, match=r"layer 'keys'(?s:.*)XLA(?s:.*)jit_compile=False"):
        model.compile("sgd", "mse", jit_compile=True)
        model.fit(data, np.zeros([BATCH, SLOTS, NNZ, DIM]), verbose=0)


def test_a_checkpoint_of_objects_has_the_rows(tmp_path):
    first, second = (sok.DistributedEmbedding("sum", 12, DIM, SLOTS, NNZ) for _ in range(2))
    rows = np.random.default_rng(0).normal(size=[len(KEYS), DIM]).astype(np.float32)
    tf_variable(first.embedding_variable).insert(KEYS, rows)

    saved = tf.train.Checkpoint(layer=first).write(f"{tmp_path}/saved")
    tf.train.Checkpoint(layer=second).read(saved).assert_existing_objects_matched()

    export = tf_variable(second.embedding_variable).export()
    np.testing.assert_array_equal(export.keys, KEYS)
    np.testing.assert_array_equal(export.values, rows)


def test_a_model_with_sparse_inputs():
    keys = tf.keras.Input([NNZ], dtype="int64", sparse=True)
    layer = sok.DistributedEmbedding("mean", 12, DIM, SLOTS, NNZ)
    model = tf.keras.Model(keys, layer(keys))
    batch = to_sparse(*sparse_batch(0)[:2])

    assert model.output_shape == (None, SLOTS, DIM)
    np.testing.assert_array_equal(model(batch), layer(batch))


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: sok.DistributedEmbedding("max", 9, 4, 1, 1), ValueError, "combiner"),
        (lambda: sok.DistributedEmbedding("sum", 0, 4, 1, 1), ValueError, "max_vocabulary_size"),
        (lambda: sok.DistributedEmbedding("sum", 9, 4, 1, 0), ValueError, "max_nnz to be a pos"),
        (lambda: sok.DistributedEmbedding("sum", 9, 4, 2, 3, 5), ValueError, "slot_num . max_nnz"),
        (lambda: sok.All2AllDenseEmbedding(9, 4, 1, 1, key_dtype="float32"), ValueError, "key_dt"),
    ],
)
def test_a_layer_that_cannot_be_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_inputs_of_another_form_are_refused():
    sparse = sok.DistributedEmbedding("sum", 9, DIM, SLOTS, NNZ)
    dense = sok.All2AllDenseEmbedding(9, DIM, SLOTS, NNZ, key_dtype=tf.uint32)
    dynamic = sok.All2AllDenseEmbedding(9, DIM, SLOTS, NNZ, dynamic_input=True)

    with pytest.raises(TypeError, match="expected a SparseTensor"):
        sparse(np.zeros([3, 2], np.int64))
    with pytest.raises(ValueError, match="at most max_nnz = 2 columns, got 3"):
        sparse(tf.sparse.from_dense(np.ones([3, 3], np.int64)))
    with pytest.raises(ValueError, match="a multiple of slot_num = 3 rows, got 4"):
        sparse(tf.sparse.from_dense(np.ones([4, 2], np.int64)))
    with pytest.raises(TypeError, match="expected keys of uint32, its key_dtype, got int64"):
        dense(np.zeros([1, 3, 2], np.int64))
    with pytest.raises(ValueError, match="nnz_per_slot = 6 keys for each sample"):
        dense(np.zeros([1, 3, 3], np.uint32))
    with pytest.raises(ValueError, match="keys of rank 1, as dynamic_input says"):
        dynamic(np.zeros([1, 3, 2], np.int64))
    scope = sok.OptimizerScope([tf.Variable([1.0])])
    with pytest.raises(TypeError, match="expected embedding variables alone"), scope:
        pass


@pytest.mark.skipif(hasattr(tf.keras, "KerasTensor"), reason="Keras 3 is not for graphs")
def test_a_script_of_deeprec():
    """A graph of TensorFlow 1."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        started = sok.Init(global_batch_size=BATCH)
        layer = sok.DistributedEmbedding(
            combiner="sum",
            max_vocabulary_size_per_gpu=12,
            embedding_vec_size=DIM,
            slot_num=SLOTS,
            max_nnz=NNZ,
        )
        keys, mask, _ = sparse_batch(0)
        vectors = layer(to_sparse(keys, mask))
        loss = tf.reduce_sum(vectors**2)
        tables, _ = sok.split_embedding_variable_from_others(layer.trainable_variables)
        train_op = sok.optimizers.Adam(learning_rate=0.01).minimize(loss, var_list=list(tables))
        session.run(started)
        session.run(v1.global_variables_initializer())

        before = session.run(loss)
        for _ in range(3):
            session.run(train_op)

        assert session.run(loss) < before
