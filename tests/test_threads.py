"""Many threads at once, on the same tables: no wrong value, no deadlock.

Ids are made before the threads start: TensorFlow checks row splits by slices, of which one thread's
may begin where another's does when there is a GPU (tensorflow/tensorflow#62523).
"""

import threading

import numpy as np
import tensorflow as tf

import group_embedding as ge

NUM_THREADS = 100


def run_in_threads(body):
    """Runs body(i) in NUM_THREADS threads at once; raises what any of them raised."""
    errors = []
    start = threading.Barrier(NUM_THREADS)

    def run(i):
        try:
            start.wait()
            body(i)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def ids_of(i):
    generator = np.random.default_rng(i)
    return tf.RaggedTensor.from_row_lengths(generator.integers(0, 50, 60), [20, 0, 40])


def test_lookups_and_gradients_in_one_hundred_threads():
    # Given tables that all threads read
    tables = [tf.Variable(tf.random.stateless_uniform([50, dim], [dim, 1])) for dim in (4, 24, 9)]
    ids = [ids_of(i) for i in range(NUM_THREADS + 2)]

    def look_up(i):
        with tf.GradientTape() as tape:
            outputs = ge.group_embedding_lookup_sparse(tables, ids[i : i + 3], "mean")
        return outputs, tape.gradient(outputs, tables)

    expected = [look_up(i) for i in range(NUM_THREADS)]

    # When each thread looks up ids of its own, again and again
    def body(i):
        for _ in range(3):
            outputs, gradients = look_up(i)
            # Then it gets its own results
            for actual, right in zip(outputs, expected[i][0]):
                np.testing.assert_array_equal(actual, right)
            for actual, right in zip(gradients, expected[i][1]):
                np.testing.assert_array_equal(actual.values, right.values)

    run_in_threads(body)


def test_training_beside_reading():
    # Given tables that all threads read and half of them update, in different orders. No row is
    # updated by two: since 2.21 TensorFlow's scatter_add loses one of two at once
    tables = [tf.Variable(tf.zeros([NUM_THREADS, 8])) for _ in range(6)]
    ids = [tf.ragged.constant([[i]], dtype=tf.int64) for i in range(NUM_THREADS)]

    def body(i):
        mine = [tables[t] for t in np.random.default_rng(i).permutation(6)]
        for _ in range(5):
            with tf.GradientTape() as tape:
                outputs = ge.group_embedding_lookup_sparse(mine, ids[i : i + 1] * 6, "sum")
            if i % 2:
                for table, gradient in zip(mine, tape.gradient(outputs, mine)):
                    table.scatter_add(gradient)

    # When they run at once
    run_in_threads(body)
    # Then no update is lost
    expected = np.where(np.arange(NUM_THREADS)[:, None] % 2, 5.0, 0.0) * np.ones(8)
    for table in tables:
        np.testing.assert_array_equal(table, expected)


def test_native_updates_of_the_same_rows():
    # Given tables of which half of the threads update the same row, each by its own optimizer
    tables = [tf.Variable(tf.zeros([50, dim])) for dim in (8, 4, 8)]
    ids = [tf.ragged.constant([[t]], dtype=tf.int64) for t in range(3)]
    optimizers = [ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0)) for _ in range(NUM_THREADS // 2)]
    for optimizer in optimizers:
        optimizer.build(tables)

    def body(i):
        order = np.random.default_rng(i).permutation(3)
        mine, my_ids = [tables[t] for t in order], [ids[t] for t in order]
        for _ in range(3):
            with tf.GradientTape() as tape:
                outputs = ge.group_embedding_lookup_sparse(mine, my_ids, "sum")
            if i % 2:
                optimizers[i // 2].apply_gradients(zip(tape.gradient(outputs, mine), mine))

    # When they run at once
    run_in_threads(body)
    # Then no update is lost
    for t, table in enumerate(tables):
        np.testing.assert_array_equal(table[t], [-NUM_THREADS / 2 * 3] * table.shape[1])
        assert float(tf.reduce_sum(table)) == -NUM_THREADS / 2 * 3 * table.shape[1]
