"""Programs of the ranks of test_sums_gpu_lookup.py. A rank loads this file alone, without other
modules of the tests."""

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.lookups import feature_ids
from group_embedding.lookups import lookup_table as tables
from group_embedding.ops.group_ids import group_ids
from group_embedding.ops.lookup_group import LookupGroup
from group_embedding.ops.sharded_group_lookup import Exchange
from group_embedding.ops.sums_group_lookup import sums_group_lookup
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows

SHAPES = {"user": (50, 4), "item": (7, 16)}
COMBINERS = ["mean", "sqrtn"]
IDS = {"user": [[3, 4], [], [3, 3, 49], [49]], "item": [[1], [2, 2], [6, 1, 0], [0]]}
# name: rows, dim, placement, combiner; each is a feature's table
PLACED = {
    "rows": (50, 4, "distributed:sums", "mean"),
    "columns": (9, 16, "columns:sums", "sqrtn"),
    "first": (20, 8, "localized:0:sums", "sum"),
    "second": (7, 3, "localized:1:sums", "mean"),
    "sent": (30, 8, "distributed", "mean"),
}
SAMPLES, STEPS = 12, 4


class SumsOf:
    """The op, in the place of `group_embedding_lookup_sparse`, of one rank with whole tables.

    Args:
        owners: of all tables, or of each.
    """

    def __init__(self, ranks, owners):
        self.ranks, self.owners = ranks, owners

    def __call__(self, params, sp_ids, combiners, sp_weights=None):
        names = [f"ids[{i}]" for i in range(len(params))]
        made = [tables.make_table(param, None, i) for i, param in enumerate(params)]
        weights = sp_weights or [None] * len(params)
        features = [feature_ids.from_rows(*of) for of in zip(names, sp_ids, weights)]
        group = LookupGroup(made, [*range(len(made))], combiners, names, True, "raise")
        owners = self.owners if isinstance(self.owners, list) else [self.owners] * len(made)
        num_rows = [t.source.object.shape[0] for t in made]
        return sums_group_lookup(
            group,
            group_ids(features, []),
            concat=False,
            exchange=Exchange(self.ranks, num_rows, "tables", params[0].dtype, 1.0),
            owners=owners,
        )


def value_of(name, shape=None):
    rng = np.random.default_rng(len(name))
    return rng.normal(size=shape or SHAPES[name]).astype(np.float32)


def whole_ids(name):
    return tf.ragged.constant(IDS[name], dtype=tf.int64)


def weights_of(ids):
    return tf.cast(ids.flat_values % 3, tf.float32) + 0.5


def batch_of(step):
    """Per feature the ids of all samples."""
    rng = np.random.default_rng(20 + step)
    return [
        tf.ragged.constant(
            [rng.integers(-1, rows, n).tolist() for n in rng.integers(0, 6, SAMPLES)],
            dtype=tf.int64, ragged_rank=1,
        )
        for rows, *_ in PLACED.values()
    ]  # fmt: skip


def make_placed_tables():
    """This rank's part of each table."""

    def create(name):
        return lambda shape, initializer: tf.Variable(initializer(shape, tf.float32), name=name)

    made = []
    for name, (rows, dim, placement, _) in PLACED.items():
        value = value_of(name, (rows, dim))
        made.append(
            make_table(
                (rows, dim), lambda shape, dtype, value=value: tf.constant(value, dtype),
                create(name), placement=placement,
            )
        )  # fmt: skip
    return made


def look_up(placed, ids, weights):
    given = None
    if weights is not None:
        given = [of.with_flat_values(w) for of, w in zip(ids, weights)]
    combiners = [combiner for *_, combiner in PLACED.values()]
    return ge.group_embedding_lookup_sparse(placed, ids, combiners, sp_weights=given)


def loss_of(outputs):
    """The mean over the samples of a loss of each."""
    return tf.add_n([tf.reduce_mean(tf.reduce_sum(output**2, 1)) for output in outputs])


def train(placed, batches, way, weighted):
    """The losses, and the types of a step's ops."""
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))

    def step(*ids):
        weights = [weights_of(of) for of in ids] if weighted else None
        with tf.GradientTape() as tape:
            loss = loss_of(look_up(placed, ids, weights))
        optimizer.apply_gradients(zip(tape.gradient(loss, placed), placed))
        return loss

    run = {"eager": lambda f: f, "function": tf.function, "compiled": ge.training.make_step}[way](
        step
    )
    losses = [float(run(*batch)) for batch in batches]
    if way == "eager":
        return losses, []
    graph = run.get_concrete_function(*batches[0]).graph
    return losses, [op.type for op in graph.get_operations()]


def train_in_one_process(weighted):
    placed = [tf.Variable(value_of(name, of[:2])) for name, of in PLACED.items()]
    losses, _ = train(placed, [batch_of(step) for step in range(STEPS)], "function", weighted)
    return losses, {name: table.numpy() for name, table in zip(PLACED, placed)}


def my_half(ids):
    rank = exchange.current().rank
    return ids[rank * SAMPLES // 2 : (rank + 1) * SAMPLES // 2]


def train_on_rank(way, weighted):
    ge.enable_distributed_strategy("collective")
    placed = make_placed_tables()
    batches = [[my_half(ids) for ids in batch_of(step)] for step in range(STEPS)]
    losses, ops = train(placed, batches, way, weighted)
    whole = {name: gather_rows(table).numpy() for name, table in zip(PLACED, placed)}
    return {"losses": losses, "ops": ops, "tables": whole}


def weight_gradients(placed, ids):
    weights = [weights_of(of) for of in ids]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = loss_of(look_up(placed, ids, weights))
    return [tf.convert_to_tensor(gradient).numpy() for gradient in tape.gradient(loss, weights)]


def weight_gradients_in_one_process():
    """For each rank's half of the batch."""
    placed = [tf.Variable(value_of(name, of[:2])) for name, of in PLACED.items()]
    half = SAMPLES // 2
    return [
        weight_gradients(placed, [ids[r * half : (r + 1) * half] for ids in batch_of(0)])
        for r in range(2)
    ]


def weight_gradients_on_rank():
    ge.enable_distributed_strategy("collective")
    return weight_gradients(make_placed_tables(), [my_half(ids) for ids in batch_of(0)])
