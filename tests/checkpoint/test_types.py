"""Tables of 16-bit rows, with the slots of an optimizer, are saved and go on bit for bit."""

import numpy as np
import pytest
import tensorflow as tf
from checkpoint import checkpoint_cases as cases

import group_embedding as ge

v1 = tf.compat.v1
BATCHES = cases.batches()
TYPES = [tf.float16, tf.bfloat16]


def build(dtype):
    """A graph that trains one table: (keys, train, saver)."""
    v1.set_random_seed(1)
    table = ge.get_embedding_variable("user", cases.DIM, value_dtype=dtype)
    keys = v1.placeholder(tf.int64, [None, 2])
    (rows,) = ge.group_embedding_lookup([table], [keys])
    loss = tf.reduce_sum((tf.cast(rows, tf.float32) - 0.3) ** 2)
    train = ge.optimizers.wrap(v1.train.AdamOptimizer(0.01)).minimize(loss)
    return keys, train, v1.train.Saver()


def check_rows(rows):
    """Checks the number of rows, that their numbers have 16 bits, and that they have slots."""
    assert len(rows) == len(np.unique(BATCHES[:5]))
    for _, _, values, slots in rows.values():
        assert len(values) == 2 * cases.DIM and len(slots) == 2


@pytest.mark.parametrize("dtype", TYPES)
def test_saver(dtype, tmp_path):
    # Given a table that was trained, saved, and trained on
    with tf.Graph().as_default(), v1.Session() as session:
        keys, train, saver = build(dtype)
        session.run(v1.global_variables_initializer())
        for batch in BATCHES[:5]:
            session.run(train, {keys: batch})
        middle = saver.save(session, f"{tmp_path}/middle")
        for batch in BATCHES[5:]:
            session.run(train, {keys: batch})
        expected = cases.content(saver.save(session, f"{tmp_path}/expected"))
    check_rows(cases.content(middle)[0]["user"])
    # When another one is restored and trained as far
    with tf.Graph().as_default(), v1.Session() as session:
        keys, train, saver = build(dtype)
        saver.restore(session, middle)
        again = cases.content(saver.save(session, f"{tmp_path}/again"))
        for batch in BATCHES[5:]:
            session.run(train, {keys: batch})
        found = cases.content(saver.save(session, f"{tmp_path}/found"))
    # Then it has the same bits, before and after
    assert again == cases.content(middle)
    assert found == expected


class Model(tf.Module):
    def __init__(self, dtype):
        super().__init__()
        self.table = ge.get_embedding_variable(
            "user", cases.DIM, value_dtype=dtype, initializer=tf.ones_initializer()
        )
        self.optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adam(0.01))
        self.optimizer.build([self.table])

    def train(self, batches):
        for keys in batches:
            with tf.GradientTape() as tape:
                (rows,) = ge.group_embedding_lookup([self.table], [keys])
                loss = tf.reduce_sum((tf.cast(rows, tf.float32) - 0.3) ** 2)
            self.optimizer.apply_gradients([(tape.gradient(loss, self.table), self.table)])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("in_background", [False, True])
def test_checkpoint(in_background, dtype, tmp_path):
    # Given a table that was trained, saved, and trained on
    first = Model(dtype)
    first.train(BATCHES[:5])
    checkpoint = tf.train.Checkpoint(model=first)
    if in_background:
        middle = ge.checkpoint.BackgroundSave(checkpoint, f"{tmp_path}/middle").result()
    else:
        middle = checkpoint.save(f"{tmp_path}/middle")
    first.train(BATCHES[5:])
    expected = cases.content(checkpoint.write(f"{tmp_path}/expected"))[0]
    check_rows(cases.content(middle)[0]["user"])
    # When another one is restored and trained as far
    second = Model(dtype)
    checkpoint = tf.train.Checkpoint(model=second)
    checkpoint.restore(middle).assert_existing_objects_matched()
    again = cases.content(checkpoint.write(f"{tmp_path}/again"))[0]
    second.train(BATCHES[5:])
    found = cases.content(checkpoint.write(f"{tmp_path}/found"))[0]
    # Then it has the same bits, before and after
    assert again == cases.content(middle)[0]
    assert found == expected
