"""Slots in bfloat16 of tables whose keys, or rows, are spread over ranks."""

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows

DIM, NUM_STEPS, BATCH, SEED = 8, 10, 48, 3


def batches():
    rng = np.random.default_rng(SEED)
    known = rng.integers(-(2**63), 2**63 - 1, 60)
    return [rng.choice(known, (BATCH, 1)) for _ in range(NUM_STEPS)]


def train():
    """{key: the bits of its row} that this rank has."""
    num_ranks, rank = exchange.current().num_ranks, exchange.current().rank
    table = ge.keyed_table(
        "of_ranks", DIM, initializer=tf.ones_initializer(), slot_dtype="bfloat16"
    )
    adam = ge.optimizers.wrap(tf.keras.optimizers.Adam(0.01), stochastic_rounding_seed=SEED)
    optimizer = ge.DistributedOptimizer(adam)
    for batch in batches():
        ids = tf.RaggedTensor.from_tensor(batch[rank::num_ranks])
        with tf.GradientTape() as tape:
            (rows,) = ge.lookup_sparse([table], [ids], "sum")
            loss = tf.reduce_sum(rows) * num_ranks  # sums of ones are exact in any order
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    found = table.export()
    return {int(key): row.tobytes() for key, row in zip(found.keys.numpy(), found.values.numpy())}


def train_on_rank():
    ge.enable_distributed_strategy()
    return train()


def test_ranks_draw_what_one_process_draws(several_ranks):
    # Given a table trained by one process, and one that ranks share
    alone = train()
    # When what each rank has of it is put together
    together = {}
    for of_rank in several_ranks.run(train_on_rank):
        assert not together.keys() & of_rank.keys()
        together.update(of_rank)
    # Then each row, which its slots moved, has the same bits
    assert together == alone
    assert len(set(alone.values())) > len(alone) / 2


class Rows:
    """A table by row number, of which a rank has its rows, and the optimizer that trains it."""

    NUM_ROWS = 13

    def __init__(self, slot_dtype):
        start = tf.random.stateless_normal([self.NUM_ROWS, DIM], seed=[SEED, 1])
        self.table = make_table(
            (self.NUM_ROWS, DIM),
            lambda shape, dtype=None: start,
            lambda shape, initializer: tf.Variable(initializer(shape)),
        )
        if slot_dtype is not None:
            ge.optimizers.set_slot_dtype(self.table, slot_dtype)
        adam = ge.optimizers.wrap(tf.keras.optimizers.Adam(0.01))
        self.optimizer = ge.DistributedOptimizer(adam)
        self.checkpoint = tf.train.Checkpoint(table=self.table, optimizer=self.optimizer)

    def train(self, steps):
        num_ranks, rank = exchange.current().num_ranks, exchange.current().rank
        for ids in np.random.default_rng(SEED).integers(0, self.NUM_ROWS, (steps, 12, 1)):
            with tf.GradientTape() as tape:
                of_rank = tf.RaggedTensor.from_tensor(ids[rank::num_ranks])
                (rows,) = ge.lookup_sparse([self.table], [of_rank], "sum")
                loss = tf.reduce_sum((rows - 1.0) ** 2)
            gradient = tape.gradient(loss, self.table)
            self.optimizer.apply_gradients([(gradient, self.table)])
        return self

    def slots(self):
        return [self.optimizer._ge_slot(name, self.table) for name in ("_momentums", "_velocities")]

    def whole(self):
        """The whole table, and its slots, in float32."""
        return [tf.cast(gather_rows(v), tf.float32).numpy() for v in (self.table, *self.slots())]


def train_rows(slot_dtype, folder, path=None):
    """The ranks' parts of the table after a restore and three steps, and the path of their save."""
    model = Rows(slot_dtype).train(1)
    if path is not None:
        model.checkpoint.read(path)
    restored = model.whole()
    model.train(3)
    own = model.checkpoint.write(f"{folder}/of_{exchange.current().rank}")
    dtypes = {slot.dtype.name for slot in model.slots()}
    return dtypes, restored, model.whole(), own.replace(f"of_{exchange.current().rank}", "of_0")


def train_rows_on_rank(*arguments):
    ge.enable_distributed_strategy()
    result = train_rows(*arguments)
    exchange.current().barrier("written")
    return result


def test_rows_of_ranks_have_small_slots_and_whole_checkpoints(two_ranks, tmp_path):
    # Given a table of small slots whose rows are spread over ranks, trained and saved
    folders = [str(tmp_path / name) for name in ("small", "wide", "again")]
    (dtypes, _, small, path), _ = two_ranks.run(train_rows_on_rank, "bfloat16", folders[0])
    assert dtypes == {"bfloat16"}
    # When one process restores it into slots of float32
    dtypes, restored, wide, wide_path = train_rows(None, folders[1], path)
    # Then it has all rows and slots
    assert dtypes == {"float32"}
    for expected, found in zip(small, restored):
        np.testing.assert_array_equal(expected, found)
    # And ranks restore those of float32, rounded to nearest
    for _, restored, _, _ in two_ranks.run(train_rows_on_rank, "bfloat16", folders[2], wide_path):
        np.testing.assert_array_equal(restored[0], wide[0])
        for expected, found in zip(wide[1:], restored[1:]):
            rounded = tf.cast(tf.cast(expected, tf.bfloat16), tf.float32)
            np.testing.assert_array_equal(found, rounded)
