"""Tables that are trained, read, erased and exported at once."""

import threading

import numpy as np
import tensorflow as tf

import group_embedding as ge


def test_rows_of_a_batch_in_flight_are_given_to_nobody(make_table, train, read):
    # Given a located batch, whose key is then erased
    table = make_table()
    with tf.GradientTape() as tape:
        (rows,) = ge.group_embedding_lookup([table], [tf.constant([1], tf.int64)])
        loss = tf.reduce_sum(rows)
    table.erase([1])
    # When another key comes, and then the gradient of the batch is applied
    train(table, [2])
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    # Then the other key has its own gradient alone
    np.testing.assert_array_equal(read(table, [2]), [[0, 0]])


def test_threads(make_table):
    # Given two tables that four threads train, in either order, while others read and export
    tables = [make_table(8, name="a"), make_table(8, name="b")]
    optimizer = ge.optimizers.wrap(tf.compat.v1.train.AdagradOptimizer(0.1))
    steps, keys_per_step = 15, 500

    def make_step(order):
        params = [tables[i] for i in order]

        # Traced once, below: TensorFlow's own optimizers are not traced by two threads at a time.
        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def step(keys):
            with tf.GradientTape() as tape:
                outputs = ge.group_embedding_lookup(params, [keys, keys])
                loss = tf.add_n([tf.reduce_sum(output) for output in outputs])
            optimizer.apply_gradients(zip(tape.gradient(loss, params), params))

        step(tf.constant([0], tf.int64))
        return step

    def train(step, seed):
        generator = np.random.default_rng(seed)
        for _ in range(steps):
            step(tf.constant(generator.integers(-3000, 3000, keys_per_step)))

    def read():
        for _ in range(steps):
            ge.group_embedding_lookup(tables, [tf.range(-50, 50, dtype=tf.int64)] * 2)
            tables[0].export()

    made = [make_step(order) for order in ((0, 1), (1, 0))]
    jobs = [threading.Thread(target=train, args=(made[i % 2], i)) for i in range(4)]
    jobs += [threading.Thread(target=read)]
    # When all run
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(timeout=120)
    # Then all end, and every occurrence of every key has been counted
    assert not any(job.is_alive() for job in jobs)
    for table in tables:
        assert int(np.sum(table.export().freqs)) == 4 * steps * keys_per_step + 2
