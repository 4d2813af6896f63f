"""Behaviour that differs on a GPU: placement of ids, time of errors, and tables only a GPU
holds."""

import numpy as np
import pytest
import tensorflow as tf
from support.oracles import lookups as oracle

import group_embedding as ge

pytestmark = pytest.mark.gpu

InvalidArgument = tf.errors.InvalidArgumentError


def make_ids(device, rows, batch, hotness, seed):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 2 * hotness, batch)
    values = generator.integers(-1, rows, lengths.sum())
    with tf.device(device):
        ragged = tf.RaggedTensor.from_row_lengths(
            tf.identity(tf.constant(values)), tf.identity(tf.constant(lengths))
        )
        return ragged if seed % 2 else ragged.to_sparse()


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("ids_device", ["CPU:0", "GPU:0"])
def test_values_and_gradients_equal_those_of_the_cpu(ids_device, dtype):
    # Given tables of many dims, on both devices
    dims = [1, 3, 8, 16, 50, 64, 100, 128, 256, 1000, 4096]
    combiners = ["mean", "sum", "sqrtn"] * 4
    results = {}
    for device in ("CPU:0", "GPU:0"):
        with tf.device(device):
            tables = [
                tf.Variable(tf.cast(tf.random.stateless_uniform([500, dim], [dim, 1]) - 0.5, dtype))
                for dim in dims
            ]
            weights_value = tf.random.stateless_uniform([4096], [3, 4]) + 0.5
        ids = [make_ids(ids_device, 500, 300, 6, i) for i in range(len(dims))]
        with tf.GradientTape() as tape:
            tape.watch(weights_value)
            weights = [None] * len(ids)
            values = weights_value[: len(ids[1].values)]
            weights[1] = ids[1].with_values(values)
            # When they are looked up on each
            outputs = ge.group_embedding_lookup_sparse(
                tables,
                ids,
                combiners[: len(dims)],
                sp_weights=weights,
                max_norm=[None, 0.6, *[None] * 9],
            )
            loss = tf.add_n([tf.reduce_sum(tf.cast(out, tf.float32) ** 2) for out in outputs])
        results[device] = outputs, tape.gradient(loss, [*tables, weights_value])
    # Then values and gradients agree
    tolerance = {tf.float32: 2e-6, tf.float16: 2e-3, tf.bfloat16: 2e-2}[dtype]
    for i in range(len(dims)):
        on_cpu, on_gpu = results["CPU:0"], results["GPU:0"]
        assert "GPU" in on_gpu[0][i].device
        oracle.assert_same(on_gpu[0][i], on_cpu[0][i], tolerance, f"dim {dims[i]}")
        np.testing.assert_array_equal(on_gpu[1][i].indices, on_cpu[1][i].indices)
        oracle.assert_same(
            on_gpu[1][i].values, on_cpu[1][i].values, 20 * tolerance, f"gradient, dim {dims[i]}"
        )
    oracle.assert_same(on_gpu[1][-1], on_cpu[1][-1], 50 * tolerance, "gradient of weights")


def test_gradient_has_the_same_bits_every_time():
    generator = np.random.default_rng(5)
    table = tf.Variable(generator.normal(size=[1000, 64]).astype(np.float32))
    ids = tf.RaggedTensor.from_row_lengths(
        tf.constant(generator.zipf(1.2, 500_000) % 1000), tf.fill([50_000], 10)
    )
    seed = tf.constant(generator.normal(size=[50_000, 64]).astype(np.float32))

    def gradient():
        with tf.GradientTape() as tape:
            out = ge.group_embedding_lookup_sparse([table], [ids], "mean")[0]
        return tape.gradient(out, table, output_gradients=seed)

    first = gradient()
    for _ in range(5):
        np.testing.assert_array_equal(first.values, gradient().values)


def bad_ids(value, device="GPU:0"):
    with tf.device(device):
        values = tf.identity(tf.constant([1, value], tf.int64))
    return tf.SparseTensor([[0, 0], [1, 0]], values, [2, 1])


@pytest.mark.parametrize("in_function", [False, True])
def test_bad_id_in_host_memory_is_raised_before_anything_changes(in_function):
    # Given two tables on the GPU, of two dtypes, and a dense variable, trained by one optimizer
    tables = [tf.Variable(tf.ones([5, 3])), tf.Variable(tf.ones([5, 4], tf.float16), name="user")]
    dense = tf.Variable(tf.ones([3]))
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))

    def step(values):
        ids = [tf.SparseTensor([[0, 0], [1, 0]], v, [2, 1]) for v in values]
        with tf.GradientTape() as tape:
            a, b = ge.group_embedding_lookup_sparse(tables, ids, "mean")
            loss = tf.reduce_sum(a * dense) + tf.reduce_sum(tf.cast(b, tf.float32))
        variables = [*tables, dense]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    run = tf.function(step) if in_function else step
    with tf.device("CPU:0"):
        good, bad = tf.constant([1, 3], tf.int64), tf.constant([1, 5], tf.int64)
    run([good, good])
    before = [variable.numpy() for variable in (*tables, dense)]
    # When ids in host memory have a bad one of one table
    with pytest.raises(InvalidArgument, match="table 'user'.*: id 5 of sample 1 is outside"):
        run([good, bad])
    # Then no variable has changed, and the next step trains
    for variable, value in zip((*tables, dense), before):
        np.testing.assert_array_equal(variable.numpy(), value)
    run([good, good])
    assert (tables[1].numpy()[3] < before[1][3]).all()


def test_bad_id_on_the_gpu_is_raised_by_the_backward_pass_of_the_same_step():
    # Given an id past the end of a table on the GPU
    table = tf.Variable(tf.ones([5, 3]), name="user")
    with tf.GradientTape() as tape:
        out = ge.group_embedding_lookup_sparse([table], [bad_ids(5)], "mean")[0]
    # When gradients are taken, then the error names it
    with pytest.raises(
        InvalidArgument, match="table 'user', feature .*: id 5 of sample 1 is outside"
    ):
        tape.gradient(out, table)


def test_bad_id_on_the_gpu_is_raised_by_the_next_lookup_and_only_once():
    table = tf.Variable(tf.ones([5, 3]), name="user")
    read = ge.group_embedding_lookup_sparse([table], [bad_ids(2**62)], "mean")[0].numpy()
    np.testing.assert_array_equal(read, [[1, 1, 1], [0, 0, 0]])
    with pytest.raises(InvalidArgument, match="id 4611686018427387904 of sample 1 is outside"):
        ge.group_embedding_lookup_sparse([table], [bad_ids(1)], "mean")
    ge.group_embedding_lookup_sparse([table], [bad_ids(1)], "mean")


def test_ignored_id_reads_zeros():
    table = tf.Variable(tf.ones([5, 3]))
    for _ in range(2):
        out = ge.group_embedding_lookup_sparse([table], [bad_ids(9)], "sum", invalid_ids="ignore")[
            0
        ]
        np.testing.assert_array_equal(out, [[1, 1, 1], [0, 0, 0]])


@pytest.mark.parametrize(
    "indices, message",
    [
        ([[1, 0], [0, 0]], "row 0 at position 1 is smaller"),
        ([[0, 0], [7, 0]], "row 7 at position 1"),
    ],
)
def test_bad_rows_on_the_gpu_are_raised_by_the_next_op(indices, message):
    table = tf.Variable(tf.ones([5, 3]))
    with tf.device("GPU:0"):
        indices = tf.identity(tf.constant(indices, tf.int64))
        values = tf.identity(tf.constant([1, 2], tf.int64))
    ids = tf.SparseTensor(indices, values, [2, 1])
    with pytest.raises(InvalidArgument, match=message):
        ge.group_embedding_lookup_sparse([table], [ids], "mean")[0].numpy()
        ge.group_embedding_lookup_sparse([table], [bad_ids(1)], "mean")


def test_table_of_more_than_2_to_the_31_elements():
    # Given a table whose last rows are past the reach of 32-bit arithmetic
    rows = (2**31 // 128) + 1000
    values = np.zeros([rows, 128], np.float16)  # TensorFlow's own scatter stops at 2^31 elements
    values[rows - 1], values[rows - 2] = 1.5, 2.5
    table = tf.Variable(values)
    # When they are looked up
    ids = tf.RaggedTensor.from_row_splits(tf.constant([rows - 1, rows - 2]), [0, 1, 2])
    with tf.GradientTape() as tape:
        out = ge.group_embedding_lookup_sparse([table], [ids], "mean")[0]
    # Then the right rows are read, and have the gradient
    np.testing.assert_array_equal(out[:, 0], [1.5, 2.5])
    assert tape.gradient(out, table).indices.numpy().tolist() == [rows - 2, rows - 1]
