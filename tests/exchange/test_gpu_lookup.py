"""Lookups of tables that are spread over GPUs, through one op and NCCL: what tests of all exchanges
do not reach. (These run on GPUs too, where there are two.)"""

import json
import warnings

import numpy as np
import pytest
import tensorflow as tf
from gpu_processes import on_two_gpus

import group_embedding as ge
from group_embedding import exchange

SHAPES = {"user": (50, 4), "item": (7, 16)}
with_two_gpus = pytest.mark.parametrize(
    "ranks", [pytest.param("two_ranks", marks=[pytest.mark.gpu, *on_two_gpus])]
)
IDS = {"user": [[3, 4], [], [3], [49]], "item": [[1], [2, 2], [6], [0]]}


def value_of(name):
    rng = np.random.default_rng(len(name))
    return rng.normal(size=SHAPES[name]).astype(np.float32)


def make_table(name, dtype=tf.float32):
    def create(shape, initializer):
        return tf.Variable(initializer(shape, dtype), name=name)

    return exchange.make_table(
        SHAPES[name], lambda shape, dtype: tf.constant(value_of(name), dtype), create
    )


def make_tables(item_dtype=tf.float32):
    ge.enable_distributed_strategy("collective")
    return make_table("user"), make_table("item", item_dtype)


def whole_ids(name):
    return tf.ragged.constant(IDS[name], dtype=tf.int64)


def ids_of_rank(name, rank):
    """Two of the four samples."""
    return whole_ids(name)[2 * rank : 2 * rank + 2]


def look_up(tables, rank):
    ids = [ids_of_rank(name, rank) for name in SHAPES]
    return ge.group_embedding_lookup_sparse(tables, ids, ["mean", "sum"])


def whole_gradient(name, loss):
    """Of the mean of the two ranks' losses, in one process, by TensorFlow's own lookup."""
    tables = {name: tf.Variable(value_of(name)) for name in SHAPES}
    with tf.GradientTape() as tape:
        outputs = [
            tf.nn.safe_embedding_lookup_sparse(
                [tables[name]], whole_ids(name).to_sparse(), combiner=combiner
            )
            for name, combiner in zip(SHAPES, ["mean", "sum"])
        ]
        total = sum(loss([output[2 * r : 2 * r + 2] for output in outputs], r) for r in range(2))
    gradient = tape.gradient(total / 2, tables[name])
    return None if gradient is None else tf.convert_to_tensor(gradient).numpy()


def ops_of_a_step():
    tables = make_tables()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            user, item = look_up(tables, exchange.current().rank)
            loss = tf.reduce_sum(user) + tf.reduce_sum(item)
        gradients = tape.gradient(loss, tables)
        ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1)).apply_gradients(zip(gradients, tables))

    graph = step.get_concrete_function().graph
    return [operation.type for operation in graph.get_operations()]


@with_two_gpus
def test_a_step_has_one_op_each_way_and_one_update(ranks, request):
    # Given tables over two GPUs
    two_ranks = request.getfixturevalue(ranks)
    # When a step is traced
    ops = two_ranks.run(ops_of_a_step)
    # Then one op looks up, one sends gradients, one updates, and Horovod carries no rows
    for of_rank in ops:
        assert of_rank.count("ShardedGroupLookup") == 1
        assert of_rank.count("SendGroupGradients") == 1
        assert of_rank.count("GroupUpdate") == 1
        assert "HorovodAlltoall" not in of_rank


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
    return [
        None if gradient is None else (gradient.indices.numpy(), gradient.values.numpy())
        for gradient in found
    ]


@with_two_gpus
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("loss", LOSSES)
def test_rows_that_no_gradient_reaches_have_none(ranks, loss, in_function, request):
    # Given a loss of one of two features, or of some samples
    expected = [whole_gradient(name, LOSSES[loss]) for name in SHAPES]
    # When its gradients are taken on two ranks
    found = request.getfixturevalue(ranks).run(gradients_of, loss, in_function)
    # Then owners have those of the rows that it depends on, and of no others
    for t, whole in enumerate(expected):
        for rank, of_rank in enumerate(found):
            if whole is None:
                assert of_rank[t] is None or not of_rank[t][0].size
                continue
            indices, values = of_rank[t]
            reached = np.flatnonzero(np.abs(whole[rank::2]).sum(axis=1))
            np.testing.assert_array_equal(indices, reached)
            np.testing.assert_allclose(values, whole[rank::2][reached], rtol=1e-5, atol=1e-6)


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
    return losses, [exchange.gather_rows(table).numpy() for table in tables]


@with_two_gpus
def test_groups_of_two_types_exchange_one_after_the_other(ranks, request):
    # Given tables of two types, which are two groups
    two_ranks = request.getfixturevalue(ranks)
    # When they are trained for fifty steps
    (losses, tables), (_, tables_of_other) = two_ranks.run(train_two_dtypes, 50)
    # Then rows shrink, and the ranks agree
    assert losses[-1] < 1e-2 * losses[0]
    for table, other in zip(tables, tables_of_other):
        np.testing.assert_array_equal(table, other)


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


@with_two_gpus
def test_ranks_that_differ_are_told_in_what(ranks, request):
    # Given ranks that look up different tables
    two_ranks = request.getfixturevalue(ranks)
    # When they do
    first, second = two_ranks.run(look_up_what_the_other_does_not)
    # Then both say how they differ
    assert "rank 1 has table 'item'" in first and "this rank has table 'user'" in first
    assert "rank 0 has table 'user'" in second


class Job(exchange.LocalExchange):
    """Ranks of which some have said what GPU they have."""

    def __init__(self, num_ranks):
        self._num_ranks = num_ranks

    @property
    def num_ranks(self):
        return self._num_ranks


@pytest.mark.parametrize(
    "gpus, reason",
    [
        (["a 1", None], "rank 1 has no GPU"),
        (["a 1", "a 2", "a 1"], "ranks 0 and 2 share a GPU"),
        ([None, None], None),
    ],
)
def test_ranks_without_a_gpu_each_do_without_nccl(monkeypatch, gpus, reason):
    # Given ranks with these GPUs
    texts = [json.dumps({"gpu": gpu, "nccl_id": "", "why_not": ""}) for gpu in gpus]
    monkeypatch.setattr(exchange.nccl, "gather_text", lambda *_: texts)
    # When they would meet
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ranks = exchange.meet(Job(len(gpus)), gpu=None, timeout_seconds=30)
    # Then they do not, and say why, if one has a GPU
    assert ranks is None
    assert [reason in str(one.message) for one in said] == ([True] if reason else [])
