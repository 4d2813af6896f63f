"""Programs of the ranks of test_gpu_lookup.py. A rank loads this file alone, without other modules
of the tests."""

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.lookups import feature_ids
from group_embedding.lookups import lookup_table as tables
from group_embedding.ops.group_ids import group_ids
from group_embedding.ops.lookup_group import LookupGroup
from group_embedding.ops.sharded_group_lookup import Exchange, sharded_group_lookup
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows

SHAPES = {"user": (50, 4), "item": (7, 16)}
IDS = {"user": [[3, 4], [], [3], [49]], "item": [[1], [2, 2], [6], [0]]}


class RanksOf:
    """The op, in the place of `group_embedding_lookup_sparse`, of ranks that have whole tables."""

    def __init__(self, ranks):
        self.ranks = ranks

    def __call__(self, params, sp_ids, combiners, sp_weights=None, max_norm=None):
        names = [f"ids[{i}]" for i in range(len(params))]
        made = [tables.make_table(param, max_norm, i) for i, param in enumerate(params)]
        unique = [*dict.fromkeys(made)]
        weights = sp_weights or [None] * len(params)
        features = [feature_ids.from_rows(*of) for of in zip(names, sp_ids, weights)]
        group = LookupGroup(
            unique, [unique.index(table) for table in made], combiners, names, True, "raise"
        )
        num_rows = [-1 if t.keyed is not None else t.source.object.shape[0] for t in unique]
        keyed = [f for f, table in enumerate(made) if table.keyed is not None]
        return sharded_group_lookup(
            group,
            group_ids(features, keyed),
            concat=False,
            exchange=Exchange(self.ranks, num_rows, "tables", params[0].dtype, 1.0),
        )


def value_of(name):
    rng = np.random.default_rng(len(name))
    return rng.normal(size=SHAPES[name]).astype(np.float32)


def make_case_table(name, dtype=tf.float32):
    def create(shape, initializer):
        return tf.Variable(initializer(shape, dtype), name=name)

    return make_table(SHAPES[name], lambda shape, dtype: tf.constant(value_of(name), dtype), create)


def make_tables(item_dtype=tf.float32):
    ge.enable_distributed_strategy("collective")
    return make_case_table("user"), make_case_table("item", item_dtype)


def whole_ids(name):
    return tf.ragged.constant(IDS[name], dtype=tf.int64)


def ids_of_rank(name, rank):
    """Two of the four samples."""
    return whole_ids(name)[2 * rank : 2 * rank + 2]


def look_up(tables, rank, weights=None, max_norm=None):
    ids = [ids_of_rank(name, rank) for name in SHAPES]
    return ge.group_embedding_lookup_sparse(
        tables, ids, ["mean", "sum"], sp_weights=weights, max_norm=max_norm
    )


def ops_of_a_step():
    tables = make_tables()
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            user, item = look_up(tables, exchange.current().rank)
            loss = tf.reduce_sum(user) + tf.reduce_sum(item)
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    graph = step.get_concrete_function().graph
    return [operation.type for operation in graph.get_operations()]


def squares_of_users(outputs, rank):
    return tf.reduce_sum(outputs[0] ** 2) * (rank + 1)


def picked_samples(outputs, rank):
    """A gradient reaches one sample of each feature: it is an IndexedSlices."""
    return sum(tf.reduce_sum(tf.gather(output, [rank]) ** 2) for output in outputs)


LOSSES = {"one_feature": squares_of_users, "some_samples": picked_samples}


def gradients_of(loss_name, in_function):
    tables, rank = make_tables(), exchange.current().rank

    def gradients():
        with tf.GradientTape() as tape:
            loss = LOSSES[loss_name](look_up(tables, rank), rank)
        return tape.gradient(loss, tables)

    found = (tf.function(gradients) if in_function else gradients)()
    return [as_arrays(gradient) for gradient in found]


def items(outputs, rank):
    return tf.reduce_sum(outputs[1] * (1.0 + rank))


def gradients_of_two_losses():
    """One lookup's, one loss after the other, both kept."""
    tables, rank = make_tables(), exchange.current().rank
    with tf.GradientTape(persistent=True) as tape:
        outputs = look_up(tables, rank)
        losses = [squares_of_users(outputs, rank) + items(outputs, rank), items(outputs, rank)]
    found = [tape.gradient(loss, tables) for loss in losses]
    return [[as_arrays(gradient) for gradient in of_loss] for of_loss in found]


def as_arrays(gradient):
    """Its indices and values."""
    return None if gradient is None else (gradient.indices.numpy(), gradient.values.numpy())


def weights_of(ids):
    return tf.cast(ids.flat_values % 3, tf.float32) + 0.5


def clipped_gradients_of(loss_name, max_norm):
    """Gradients of this rank's weights, and of its rows, which are read scaled down to max_norm."""
    tables, rank = make_tables(), exchange.current().rank
    ids = [ids_of_rank(name, rank) for name in SHAPES]
    weights = [weights_of(of) for of in ids]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        given = [of.with_flat_values(w) for of, w in zip(ids, weights)]
        loss = LOSSES[loss_name](look_up(tables, rank, given, max_norm), rank)
    gradients = tape.gradient(loss, [*tables, *weights])
    return [None if gradient is None else tf.convert_to_tensor(gradient).numpy()
            for gradient in gradients]  # fmt: skip


def train_two_dtypes(num_steps):
    tables = make_tables(tf.bfloat16)
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            user, item = look_up(tables, exchange.current().rank)
            loss = tf.reduce_sum(user**2) + tf.reduce_sum(tf.cast(item, tf.float32) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
        return loss

    losses = [step().numpy() for _ in range(num_steps)]
    return losses, [gather_rows(table).numpy() for table in tables]


def look_up_what_the_other_does_not():
    user, item = make_tables()
    is_first = exchange.current().rank == 0
    ids = tf.ragged.constant([[1]], dtype=tf.int64)
    try:
        ge.group_embedding_lookup_sparse(
            [user if is_first else item], [ids], "sum", feature_names=["clicks"]
        )
    except tf.errors.InvalidArgumentError as error:
        return error.message
    return ""
