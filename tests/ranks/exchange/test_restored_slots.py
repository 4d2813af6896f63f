"""Slots of tables that are spread over ranks, restored before the optimizer has made them; and
checkpoints of one rank's rows alone, which are refused."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows

v1 = tf.compat.v1
NUM_ROWS, DIM = 7, 2


def legacy_adam():
    return tf.keras.optimizers.legacy.Adam(0.1)


def adam():
    return tf.keras.optimizers.Adam(0.1)


def v1_adam():
    return v1.train.AdamOptimizer(0.1)


OPTIMIZERS = [adam, v1_adam]
if hasattr(getattr(tf.keras.optimizers, "legacy", None), "Adam") and not hasattr(
    tf.keras, "__version__"
):  # Keras 3 has no legacy ones
    OPTIMIZERS.append(legacy_adam)


class Model:
    def __init__(self, make_optimizer):
        self.table = make_table(
            (NUM_ROWS, DIM),
            lambda shape, dtype=None: tf.reshape(tf.range(float(NUM_ROWS * DIM)), shape),
            lambda shape, initializer: tf.Variable(initializer(shape)),
        )
        self.optimizer = ge.DistributedOptimizer(make_optimizer())
        self.checkpoint = tf.train.Checkpoint(table=self.table, optimizer=self.optimizer)

    def train(self, ids):
        with tf.GradientTape() as tape:
            (output,) = ge.group_embedding_lookup_sparse(
                [self.table], [tf.ragged.constant([ids])], "sum"
            )
            loss = tf.reduce_sum(output**2)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.table), self.table)])

    def rows(self):
        return gather_rows(self.table).numpy()


def restore_before_slots(make_optimizer, folder):
    """Rows before the save, after it and a step more; and of a model that was restored."""
    ge.enable_distributed_strategy()
    model = Model(make_optimizer)
    model.train([1, 4, 6])
    model.train([0, 4])
    own = f"{folder}/of_{exchange.current().rank}"
    model.checkpoint.write(own)
    exchange.current().barrier("written")
    saved = model.rows()
    model.train([4, 5, 6])

    restored = Model(make_optimizer)
    restored.checkpoint.read(f"{folder}/of_0")
    found = restored.rows()
    restored.train([4, 5, 6])
    return saved, model.rows(), found, restored.rows()


def restore_other_table(folder):
    """The error where a checkpoint's table has another number of rows."""
    ge.enable_distributed_strategy()
    path = tf.train.Checkpoint(table=tf.Variable(tf.ones([NUM_ROWS - 1, DIM]))).write(
        f"{folder}/short_{exchange.current().rank}"
    )
    with pytest.raises(ValueError) as error:
        Model(adam).checkpoint.read(path)
    return str(error.value)


def save_with_stock_saver(folder):
    """The errors of a Saver, and of a SavedModel, of a graph whose table is spread."""
    ge.enable_distributed_strategy()
    errors, own = [], f"{folder}/{exchange.current().rank}"
    with tf.Graph().as_default(), v1.Session() as session:
        make_table(
            (NUM_ROWS, DIM),
            v1.zeros_initializer(),
            lambda shape, initializer: v1.get_variable("rows", shape, tf.float32, initializer),
        )
        dense = v1.get_variable("dense", [2], initializer=v1.ones_initializer())
        session.run(v1.global_variables_initializer())
        for save in (
            v1.train.Saver,
            lambda: v1.saved_model.simple_save(session, own, {"x": dense}, {"y": dense}),
        ):
            with pytest.raises(ValueError) as error:
                save()
            errors.append(str(error.value))
        v1.train.Saver([dense]).save(session, f"{own}_dense")
    return errors


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS, ids=[m.__name__ for m in OPTIMIZERS])
def test_slots_are_restored_before_they_are_made(make_optimizer, two_ranks, tmp_path):
    # Given a checkpoint of a table and its optimizer, of two ranks
    # When it is restored into an optimizer that has not trained yet, which then takes a step
    results = two_ranks.run(restore_before_slots, make_optimizer, str(tmp_path))
    for saved, further, found, restored_further in results:
        # Then rows are those of the uninterrupted model to the bit, before the step and after it
        assert (saved != further).any()
        np.testing.assert_array_equal(found, saved)
        np.testing.assert_array_equal(restored_further, further)


def test_a_table_of_another_number_of_rows_is_refused_by_all_ranks(two_ranks, tmp_path):
    # Given a checkpoint of 6 rows, of which a rank of two takes as many as of 7, or one less
    # When ranks restore it into a table of 7
    for error in two_ranks.run(restore_other_table, str(tmp_path)):
        # Then each refuses it
        assert "expected 7 rows of dim 2, got a tensor of shape (6, 2)" in error


def test_stock_savers_and_saved_models_are_refused_in_graphs(two_ranks, tmp_path):
    # Given a graph with a table by row number that is spread over ranks
    # When a stock Saver is made in it, or a SavedModel written, each is refused
    for of_saver, of_saved_model in two_ranks.run(save_with_stock_saver, str(tmp_path)):
        # Then the error names the table and what to do; dense variables alone are saved
        assert "table 'rows': expected ge.Saver" in of_saver
        assert "table 'rows': expected no SavedModel" in of_saved_model
