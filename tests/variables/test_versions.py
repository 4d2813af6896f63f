"""The source of keys' versions in graphs of TensorFlow 1."""

import numpy as np
import tensorflow as tf

import group_embedding as ge

v1 = tf.compat.v1


def test_a_global_step_that_is_younger_than_the_lookup(make_table):
    with tf.Graph().as_default(), v1.Session() as session:
        tables = [make_table(name=name) for name in ("user", "item")]
        keys = v1.placeholder(tf.int64, [None])
        loss = tf.add_n([tf.reduce_sum(x) for x in ge.group_embedding_lookup(tables, [keys, keys])])
        step = v1.train.get_or_create_global_step()
        optimizer = ge.optimizers.wrap(v1.train.GradientDescentOptimizer(0.1))
        train = optimizer.minimize(loss, step)
        version = tables[1].get_version([7, 8, 9])
        session.run(v1.global_variables_initializer())

        for batch in ([7, 8], [8], [8]):
            session.run(train, {keys: batch})

        np.testing.assert_array_equal(session.run(version), [0, 2, -1])
