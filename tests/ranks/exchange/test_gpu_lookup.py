"""Lookups of tables that are spread over GPUs, through one op and NCCL: what tests of all exchanges
do not reach. (These run on GPUs too, where there are two.)"""

import numpy as np
import pytest
import tensorflow as tf
from ranks.exchange.gpu_lookup_cases import (
    LOSSES,
    SHAPES,
    RanksOf,
    clipped_gradients_of,
    gradients_of,
    gradients_of_two_losses,
    items,
    look_up_what_the_other_does_not,
    ops_of_a_step,
    squares_of_users,
    train_two_dtypes,
    value_of,
    weights_of,
    whole_ids,
)
from ranks.exchange.gpu_processes import on_gpus
from support.cases.core_runner import core, on_gpu
from tensorflow.python.framework.func_graph import FuncGraph

import group_embedding as ge
from group_embedding.distributed import gradients
from group_embedding.ops._nccl import name_nccl
from group_embedding.ops.deferred import deferring
from group_embedding.ops.sharded_group_lookup import NcclRanks
from group_embedding.ranks.exchange.local import LocalExchange

with_two_gpus = pytest.mark.parametrize(
    "ranks", [pytest.param("two_ranks", marks=[pytest.mark.gpu, *on_gpus(2)])]
)


def whole_gradient(name, loss):
    """Gradients of the mean of the two ranks' losses, in one process, by TensorFlow's own
    lookup."""
    tables = {name: tf.Variable(value_of(name)) for name in SHAPES}
    with tf.GradientTape() as tape:
        outputs = [
            tf.nn.safe_embedding_lookup_sparse(
                [tables[name]], whole_ids(name).to_sparse(), combiner=combiner
            )
            for name, combiner in zip(SHAPES, ["mean", "sum"])
        ]
        total = sum(loss([output[2 * r : 2 * r + 2] for output in outputs], r) for r in range(2))
        mean = total / 2
    gradient = tape.gradient(mean, tables[name])
    return None if gradient is None else tf.convert_to_tensor(gradient).numpy()


@with_two_gpus
def test_a_step_has_one_op_each_way_and_one_update(ranks, request):
    # Given tables over two GPUs
    two_ranks = request.getfixturevalue(ranks)
    # When a step is traced
    ops = two_ranks.run(ops_of_a_step)
    # Then one op looks up, one sends gradients, one updates, and Horovod carries no rows
    for of_rank in ops:
        assert of_rank.count("GroupEmbedding>ShardedGroupLookup") == 1
        assert of_rank.count("GroupEmbedding>SendGroupGradients") == 1
        assert of_rank.count("GroupEmbedding>GroupUpdate") == 1
        assert "HorovodAlltoall" not in of_rank


@with_two_gpus
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("loss", LOSSES)
def test_rows_that_no_gradient_reaches_have_none(ranks, loss, in_function, request):
    # Given a loss of one of two features, or of some samples
    expected = [whole_gradient(name, LOSSES[loss]) for name in SHAPES]
    # When its gradients are taken on two ranks
    found = request.getfixturevalue(ranks).run(gradients_of, loss, in_function)
    # Then owners have those of the rows that it depends on, and of no others
    for rank, of_rank in enumerate(found):
        for gradient, whole in zip(of_rank, expected):
            assert_rows_of(gradient, whole, rank)


def assert_rows_of(gradient, whole, rank):
    """`gradient`: indices and values, of one of two ranks' rows."""
    if whole is None:
        assert gradient is None or not gradient[0].size
        return
    indices, values = gradient
    reached = np.flatnonzero(np.abs(whole[rank::2]).sum(axis=1))
    np.testing.assert_array_equal(indices, reached)
    np.testing.assert_allclose(values, whole[rank::2][reached], rtol=1e-5, atol=1e-6)


@with_two_gpus
def test_two_losses_of_one_lookup(ranks, request):
    # Given one lookup, and two losses of it
    def both(outputs, rank):
        return squares_of_users(outputs, rank) + items(outputs, rank)

    expected = [[whole_gradient(name, loss) for name in SHAPES] for loss in (both, items)]
    # When each one's gradients are taken, and those of the first are kept
    found = request.getfixturevalue(ranks).run(gradients_of_two_losses)
    # Then they are those of one process
    for rank, of_rank in enumerate(found):
        for of_loss, whole_of_loss in zip(of_rank, expected):
            for gradient, whole in zip(of_loss, whole_of_loss):
                assert_rows_of(gradient, whole, rank)


def whole_clipped_gradients(loss, max_norm):
    """Gradients of the mean of the two ranks' losses: of the tables, and of the weights of each
    rank's loss."""
    tables, ids = [tf.Variable(value_of(name)) for name in SHAPES], map(whole_ids, SHAPES)
    weighted = [(of, weights_of(of)) for of in ids]
    with tf.GradientTape() as tape:
        tape.watch([weights for _, weights in weighted])
        outputs = ge.group_embedding_lookup_sparse(
            tables,
            [of for of, _ in weighted],
            ["mean", "sum"],
            sp_weights=[of.with_flat_values(weights) for of, weights in weighted],
            max_norm=max_norm,
        )
        mean = sum(loss([output[2 * r : 2 * r + 2] for output in outputs], r) for r in range(2)) / 2
    *of_tables, first, second = tape.gradient(mean, [*tables, *[w for _, w in weighted]])
    splits = [of.row_splits[2].numpy() for of, _ in weighted]
    of_weights = [
        None if whole is None else [2 * whole[:split], 2 * whole[split:]]
        for whole, split in zip((first, second), splits)
    ]
    return of_tables, of_weights


@with_two_gpus
@pytest.mark.parametrize("loss", LOSSES)
def test_clipped_and_weighted_rows_of_a_part_of_the_batch(ranks, loss, request):
    # Given rows longer than the norm, weights, and a loss of one feature, or of some samples
    tables, weights = whole_clipped_gradients(LOSSES[loss], 1.5)
    # When gradients are taken on two ranks
    found = request.getfixturevalue(ranks).run(clipped_gradients_of, loss, 1.5)
    # Then they are those of one process, of the rows and of each rank's weights
    for rank, of_rank in enumerate(found):
        for got, whole in zip(of_rank[:2], tables):
            expected = 0 if whole is None else tf.convert_to_tensor(whole)[rank::2]
            np.testing.assert_allclose(0 if got is None else got, expected, rtol=1e-5, atol=1e-6)
        for got, whole in zip(of_rank[2:], weights):
            expected = 0 if whole is None else whole[rank]
            np.testing.assert_allclose(0 if got is None else got, expected, rtol=1e-5, atol=1e-6)


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


@with_two_gpus
def test_ranks_that_differ_are_told_in_what(ranks, request):
    # Given ranks that look up different tables
    two_ranks = request.getfixturevalue(ranks)
    # When they do
    first, second = two_ranks.run(look_up_what_the_other_does_not)
    # Then both say how they differ
    assert "rank 1 has table 'item'" in first and "this rank has table 'user'" in first
    assert "rank 0 has table 'user'" in second


@pytest.fixture(scope="module")
def one_rank():
    name_nccl()
    return RanksOf(NcclRanks(core.nccl_id(), 0, 1, 30.0))


def needs_a_gpu(test):
    for mark in (pytest.mark.gpu, *on_gpu):
        test = mark(test)
    return test


def make_variables(dtype=tf.float32):
    return [tf.Variable(tf.cast(value_of(name), dtype)) for name in SHAPES]


def loss_and_gradients(look_up, variables, weighted, max_norm=None, samples=(0, 1, 2, 3)):
    ids = [whole_ids(name) for name in SHAPES]
    weights = [weights_of(of) for of in ids]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        given = [i.with_flat_values(w) for i, w in zip(ids, weights)] if weighted else None
        outputs = look_up(variables, ids, ["mean", "sqrtn"], sp_weights=given, max_norm=max_norm)
        if len(samples) < 4:
            outputs = [tf.gather(output, samples) for output in outputs]
        loss = tf.add_n([tf.reduce_sum(tf.cast(output, tf.float32) ** 3) for output in outputs])
    gradients = tape.gradient(loss, [*variables, *(weights if weighted else [])])
    return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]


@needs_a_gpu
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
def test_one_rank_looks_up_as_without_ranks(one_rank, dtype, in_function, weighted):
    # Given tables on a GPU
    variables = make_variables(dtype)
    run = tf.function(loss_and_gradients) if in_function else loss_and_gradients
    # When they are looked up by one rank of NCCL
    loss, gradients = run(one_rank, variables, weighted)
    # Then loss and gradients are those of the local lookup
    expected, expected_gradients = run(ge.group_embedding_lookup_sparse, variables, weighted)
    np.testing.assert_array_equal(loss, expected)
    for gradient, of_local in zip(gradients, expected_gradients):
        np.testing.assert_array_equal(gradient, of_local)


@needs_a_gpu
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("samples", [(0, 1, 2, 3), (0, 3)], ids=["all", "some"])
def test_one_rank_clips_rows_as_without_ranks(one_rank, samples, weighted):
    # Given rows that are read scaled down, and a loss of all samples, or of some
    variables = make_variables()
    assert all(tf.reduce_any(tf.norm(variable, axis=1) > 1.5) for variable in variables)
    # When they are looked up by one rank of NCCL
    loss, gradients = loss_and_gradients(one_rank, variables, weighted, 1.5, samples)
    # Then loss and gradients are those of the local lookup
    expected, expected_gradients = loss_and_gradients(
        ge.group_embedding_lookup_sparse, variables, weighted, 1.5, samples
    )
    np.testing.assert_array_equal(loss, expected)
    for gradient, of_local in zip(gradients, expected_gradients):
        np.testing.assert_array_equal(gradient, of_local)


def train(look_up, num_steps):
    """In a graph of TensorFlow 1, with a wrapped optimizer."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable(name, initializer=value_of(name), use_resource=True) for name in SHAPES
        ]
        ids = [whole_ids(name) for name in SHAPES]
        outputs = look_up(variables, ids, ["mean", "sum"])
        loss = tf.add_n([tf.reduce_sum(output**2) for output in outputs])
        optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
        step = optimizer.minimize(loss, var_list=variables)
        session.run(v1.global_variables_initializer())
        losses = [session.run([loss, step])[0] for _ in range(num_steps)]
        return losses, session.run(variables)


@needs_a_gpu
def test_one_rank_trains_in_a_session_as_without_ranks(one_rank):
    # Given the same graph, with a local lookup
    losses, tables_of_local = train(ge.group_embedding_lookup_sparse, num_steps=20)
    # When it is trained with one rank of NCCL
    losses_of_rank, tables_of_rank = train(one_rank, num_steps=20)
    # Then the bits are the same
    assert losses_of_rank == losses
    for table, of_local in zip(tables_of_rank, tables_of_local):
        np.testing.assert_array_equal(table, of_local)


@needs_a_gpu
def test_a_bad_id_is_an_error_at_once(one_rank):
    # Given ids of which one is outside its table
    variables = make_variables()
    ids = [tf.ragged.constant([[1], [3, 50]], dtype=tf.int64), whole_ids("item")]
    # When they are looked up, then the error says which
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 0: .*id 50 of sample 1"):
        one_rank(variables, ids, ["sum", "sum"])
    # And the next lookup is a good one
    good = [tf.ragged.constant([[1]], dtype=tf.int64), whole_ids("item")]
    (user, _) = one_rank(variables, good, ["sum", "sum"])
    np.testing.assert_array_equal(user, value_of("user")[[1]])


class TwoRanks(LocalExchange):
    """Ranks with a GPU each, whose collective is an op that says so."""

    num_ranks = 2
    nccl_ranks = NcclRanks(b"", 0, 2, 30.0)

    def average(self, tensors, name):
        return [tf.identity(tensor, name=name) for tensor in tensors]


def ops_before(op):
    """All that must have run before it does."""
    before, left = set(), [op]
    while left:
        op = left.pop()
        for other in [*op.control_inputs, *(tensor.op for tensor in op.inputs)]:
            if other not in before:
                before.add(other)
                left.append(other)
    return before


def new_graph(kind):
    """The graph of a function, without the tensors that `tf.function` adds when it traces the
    function. The graph of its gradient has none either."""
    return tf.Graph() if kind == "graph" else FuncGraph("gradient")


def make_squares():
    """Two variables: a graph's own, of a function's outside of it."""
    with tf.init_scope():
        return [tf.Variable(tf.ones([4, 4])) for _ in range(2)]


@pytest.mark.parametrize("kind", ["function", "graph"])
def test_ops_that_exchange_run_in_the_order_in_which_they_were_made(kind):
    # Given a graph of two lookups and their gradients
    with new_graph(kind).as_default() as graph:
        tables = make_squares()
        look_up = RanksOf(TwoRanks.nccl_ranks)
        found = [look_up([table], [tf.ragged.constant([[1]])], ["sum"])[0] for table in tables]
        tf.gradients([tf.reduce_sum(rows**2) for rows in found], tables)
    # When an executor takes what is ready
    exchanging = ("GroupEmbedding>ShardedGroupLookup", "GroupEmbedding>SendGroupGradients")
    made = [op for op in graph.get_operations() if op.type in exchanging]
    # Then only one of them is at a time
    assert len(made) == 4
    for op, next_op in zip(made, made[1:]):
        assert op in ops_before(next_op)


@pytest.mark.parametrize("kind", ["function", "graph"])
def test_other_gradients_are_averaged_once_those_of_tables_are_sent(monkeypatch, kind):
    # Given the gradients of a table over GPUs, and of a dense variable
    with new_graph(kind).as_default():
        table, kernel = make_squares()
        monkeypatch.setattr(gradients, "exchange_of", lambda variable: variable is table or None)
        (rows,) = RanksOf(TwoRanks.nccl_ranks)([table], [tf.ragged.constant([[1]])], ["sum"])
        slices, dense = tf.gradients(tf.reduce_sum((rows @ kernel) ** 2), [table, kernel])
        # When they are averaged
        sent, averaged = gradients.average_gradients(TwoRanks(), [slices, dense], [table, kernel])
    # Then the table's is what was sent, not added up for this, and the other waits for it
    before = {op.type for op in ops_before(averaged.op)}
    assert sent is slices
    assert (
        "GroupEmbedding>SendGroupGradients" in before
        and "GroupEmbedding>GroupLookupGrad" not in before
    )


def test_so_are_those_of_a_compiled_step(monkeypatch):
    # Given the trace of a step that is compiled: a gradient of a table over GPUs, and another one
    table, kernel = make_squares()
    monkeypatch.setattr(gradients, "exchange_of", lambda variable: variable is table or None)
    with tf.Graph().as_default(), deferring(None) as trace:
        values, dense = (tf.compat.v1.placeholder(tf.float32, [4, 4]) for _ in range(2))
        slices = tf.IndexedSlices(values, tf.range(4), [4, 4])
        gradients.average_gradients(TwoRanks(), [slices, dense], [table, kernel])
    (call,) = trace.calls
    assert call.inputs == [dense, values]
    # When the ops of the step are made
    with new_graph("function").as_default():
        (rows,) = RanksOf(TwoRanks.nccl_ranks)([table], [tf.ragged.constant([[1]])], ["sum"])
        slices, dense = tf.gradients(tf.reduce_sum((rows @ kernel) ** 2), [table, kernel])
        (averaged,) = call.run(dense, slices.values)
    # Then the other one is averaged once the table's is sent
    before = {op.type for op in ops_before(averaged.op)}
    assert "GroupEmbedding>SendGroupGradients" in before
    assert "GroupEmbedding>GroupLookupGrad" not in before


@pytest.mark.parametrize("is_differentiated", [True, False])
def test_a_lookup_that_is_differentiated_trains_its_keys(is_differentiated):
    # Given a function that looks up a table of keys and one of rows
    keyed = ge.get_embedding_variable("user", 4)
    rows = tf.Variable(tf.ones([4, 4]))

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            found = RanksOf(TwoRanks.nccl_ranks)([keyed, rows], [ids, ids], ["sum", "sum"])
            loss = tf.add_n([tf.reduce_sum(one**2) for one in found])
        return tape.gradient(loss, [keyed, rows]) if is_differentiated else loss

    # When it is traced
    graph = step.get_concrete_function(tf.RaggedTensorSpec([None, None], tf.int64, 1)).graph
    # Then its op trains keys if somebody differentiates it
    (op,) = [op for op in graph.get_operations() if op.type == "GroupEmbedding>ShardedGroupLookup"]
    assert op.get_attr("training") == is_differentiated
    assert op.get_attr("keyed") == [0] and op.get_attr("learning") == [True]
    types = [op.type for op in graph.get_operations()]
    assert types.count("GroupEmbedding>SendGroupGradients") == int(is_differentiated)
